"""The tasks of a wave's dag, the same for every runner: shard numbers, one task each, the outcome.

`check_outcome` is the only leaf, because a dag run takes the state of its leaves. What follows the
shards is teardown: whoever marks the run failed ends all other tasks, and these two still run. What is
mapped are integers only, since every mapped instance downloads the whole list.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, task

from shardline.runners.waves import MAX_LIVING
from shardline_airflow.job_tasks import RETRIES

WAVE_DAG: dict[str, Any] = {
    "schedule": None,
    "catchup": False,
    # of all jobs: one with stragglers in each of its waves must not hold up the first wave of the next
    "max_active_runs": 4 * MAX_LIVING,
    "max_active_tasks": 1_000,
    "is_paused_upon_creation": False,
    "tags": ["shardline"],
}


def wave_fields() -> dict[str, Param]:
    """What `run_waves` tells a wave."""
    return {
        "job_id": Param(
            type="string",
            pattern="^[a-z0-9-]+$",
            title="Job",
            description="The id of a planned job.",
        ),
        "lo": Param(0, type="integer", minimum=0, title="First shard", description="Its number."),
        "hi": Param(
            1,
            type="integer",
            minimum=1,
            title="End",
            description="The number after the last shard; at most 1,000 more than the first.",
        ),
        "generation": Param(
            1,
            type="integer",
            minimum=1,
            title="Generation",
            description="Which start or resume of the job this wave belongs to.",
        ),
    }


def wave_tasks(infer_shard: Any, *, has_pods: bool = False) -> Any:
    """Add a wave's tasks to the dag of the context; return check_outcome.

    Args:
        infer_shard: the runner's operator, `partial`; it takes the `number` of a shard.
        has_pods: whether tasks may leave pods behind.
    """

    @task(**RETRIES)
    def shard_numbers(params: Any = None) -> list[int]:
        from shardline_airflow import stages

        wave = {name: params[name] for name in ("job_id", "lo", "hi", "generation")}
        return stages.unfinished_shards(**wave)

    @task(**RETRIES)
    def reap_pods(dag_run: Any = None, params: Any = None) -> int:
        from shardline_airflow.reaper import reap_pods

        job_id, generation = params["job_id"], params["generation"]
        return reap_pods(dag_run.dag_id, dag_run.run_id, job_id, generation)

    @task(**RETRIES)
    def check_outcome(params: Any = None) -> None:
        from shardline_airflow import stages

        stages.check_wave(params["job_id"], params["lo"], params["hi"])

    ended = infer_shard.expand(number=shard_numbers())
    # without the flag Airflow would not ask them how the run has ended
    outcome = check_outcome().as_teardown(on_failure_fail_dagrun=True)
    if has_pods:
        ended >> reap_pods().as_teardown(on_failure_fail_dagrun=True) >> outcome
    else:
        ended >> outcome
    return outcome
