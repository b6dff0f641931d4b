"""The stages of a job, or of a replay, as tasks, usable in anybody's dag.

    with DAG("nightly", params=run_fields(), ...):
        job_tasks(JobSpec(job_file="reviews.yaml", outlet=Asset("reviews")))

Each task may be cleared at any time: a stage whose output exists reads it. What is mapped are
integers only, since every mapped instance downloads the whole list. `check_outcome` is the only
leaf, because a dag run takes the state of its leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow.sdk import Asset, AssetAlias, task

from shardline.job import JobFile
from shardline.settings import Settings
from shardline_airflow.retries import TypedRetryPolicy

RETRIES: dict[str, Any] = {
    "retries": 2,
    "retry_delay": timedelta(seconds=15),
    "retry_policy": TypedRetryPolicy(),
}
WATCH_RETRIES: dict[str, Any] = {
    **RETRIES,
    # it lives as long as all the shards, and each time that Airflow's API server is away for minutes
    # kills it; a new start costs it seconds
    "retries": 20,
}


@dataclass(frozen=True)
class JobSpec:
    """Which job the tasks run, and what they tell Airflow when its results are published."""

    job_file: str | None = None
    """A file of the jobs folder. None: the run's params say (form.form)."""
    outlet: Asset | AssetAlias | None = None
    """Gets an event with partition, rows and version. An alias cannot carry the partition key."""
    waiting_job: JobFile | None = None
    """A job whose `corpus.wait_for`, if it has one, is waited for first."""


def job_tasks(spec: JobSpec) -> Any:
    """Add all tasks of a job to the dag (or task group) of the context; return check_outcome."""

    @task(**RETRIES)
    def plan_job(params: Any = None, dag_run: Any = None, ti: Any = None) -> list[int]:
        from shardline_airflow import stages

        plan = stages.plan_job(spec.job_file, params, dag_run.partition_key)
        ti.xcom_push("job_id", plan.job_id)
        return list(range(len(plan.splits)))

    @task(map_index_template="split {{ '%05d' % ti.map_index }}", **RETRIES)
    def scan_corpus(job_id: str, split: int) -> None:
        from shardline_airflow import stages

        stages.scan_corpus(job_id, split)

    @task(**RETRIES)
    def check_ids(job_id: str) -> list[int]:
        from shardline_airflow import stages

        return list(range(stages.check_ids(job_id)))

    @task(map_index_template="bucket set {{ '%05d' % ti.map_index }}", **RETRIES)
    def cut_shards(job_id: str, bucket_set: int) -> None:
        from shardline_airflow import stages

        stages.cut_shards(job_id, bucket_set)

    @task(**RETRIES)
    def write_manifest(job_id: str) -> None:
        from shardline_airflow import stages

        stages.write_manifest(job_id)

    splits = plan_job()
    job_id = splits["job_id"]
    bucket_sets = check_ids(job_id)
    steps = [
        splits,
        scan_corpus.partial(job_id=job_id).expand(split=splits),
        bucket_sets,
        cut_shards.partial(job_id=job_id).expand(bucket_set=bucket_sets),
        write_manifest(job_id),
    ]
    return _run_and_publish(job_id, steps, spec.outlet, _arrival(spec.waiting_job))


def replay_tasks(outlet: Asset | AssetAlias | None = None) -> Any:
    """Add all tasks of a replay to the dag of the context, whose form says which; return its leaf."""

    @task(**RETRIES)
    def open_replay(params: Any = None, ti: Any = None) -> None:
        from shardline_airflow import stages

        job_id = stages.open_replay(params, f"airflow:{ti.dag_id}:{ti.run_id}")
        ti.xcom_push("job_id", job_id)

    @task(**RETRIES)
    def cut_replay(job_id: str) -> None:
        from shardline_airflow import stages

        stages.cut_replay(job_id)

    opened = open_replay()
    return _run_and_publish(opened["job_id"], [opened, cut_replay(opened["job_id"])], outlet)


def _run_and_publish(
    job_id: Any, steps: list[Any], outlet: Asset | AssetAlias | None, arrival: Any = None
) -> Any:
    """Add the tasks from the first wave to the outcome behind `steps`, the first of which plans.

    `arrival`, if there is one, is waited for before.
    """
    outlets = [outlet] if outlet is not None else []

    @task(**WATCH_RETRIES)
    def run_waves(job_id: str) -> int:
        from airflow.sdk import get_current_context

        from shardline_airflow.wave_operator import run_waves

        return run_waves(job_id, get_current_context())

    @task(**RETRIES)
    def settle_shards(job_id: str, generation: int) -> None:
        from shardline_airflow import stages
        from shardline_airflow.wave_operator import wait_for_waves

        wait_for_waves(job_id, generation)
        stages.settle_shards(job_id, generation)

    @task(**RETRIES)
    def merge_shards(job_id: str) -> None:
        from shardline_airflow import stages

        stages.merge_shards(job_id)

    @task(**RETRIES)
    def validate_results(job_id: str) -> None:
        from shardline_airflow import stages

        stages.validate_results(job_id)

    @task(outlets=outlets, **RETRIES)
    def publish_results(job_id: str, params: Any = None, outlet_events: Any = None) -> None:
        from shardline_airflow import stages

        news = stages.publish_results(job_id, force=params.get("force_publish") or False)
        tell(outlet, outlet_events, news)

    @task(**RETRIES)
    def report_job(job_id: str) -> None:
        from shardline_airflow import stages

        stages.report_job(job_id)

    @task(trigger_rule="all_done", **RETRIES)
    def check_outcome(planner: str, watched: list[str], ti: Any = None) -> str:
        from shardline_airflow import stages
        from shardline_airflow.runs import DagRuns

        states = DagRuns(ti.dag_id).task_states(ti.run_id, watched)
        return stages.check_outcome(ti.xcom_pull(task_ids=planner, key="job_id"), states)

    generation = run_waves(job_id)
    steps = [
        *steps,
        generation,
        settle_shards(job_id, generation),
        merge_shards(job_id),
        validate_results(job_id),
        publish_results(job_id),
        report_job(job_id),
    ]
    watched = [step.operator.task_id for step in steps]
    if arrival is not None:
        arrival >> steps[0]
        watched.append(arrival.task_id)
    outcome = check_outcome(watched[0], watched)
    for step, following in zip(steps, [*steps[1:], outcome], strict=True):
        step >> following
    return outcome


def _arrival(job: JobFile | None) -> Any:
    """The task that waits for the corpus, or None where nothing is waited for."""
    if job is None or job.corpus.wait_for is None:
        return None
    from shardline_airflow.arrivals import wait_for_corpus

    return wait_for_corpus(job, Settings().aws_conn_id)


def tell(outlet: Asset | AssetAlias | None, outlet_events: Any, news: dict[str, Any]) -> None:
    """Hand `news` to whoever waits for the outlet."""
    if isinstance(outlet, Asset):
        outlet_events[outlet].extra = news
    elif outlet is not None:
        asset = Asset(name=news["table"], uri=news["uri"])
        outlet_events[outlet].add(asset, extra=news)
