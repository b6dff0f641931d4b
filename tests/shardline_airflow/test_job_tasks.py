"""The tasks of a job in somebody else's dag."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

import pytest
from airflow.sdk import DAG, Asset, AssetAlias, TaskGroup

from shardline_airflow.job_tasks import JobSpec, job_tasks, replay_tasks

STAGES = [
    "plan_job",
    "scan_corpus",
    "check_ids",
    "cut_shards",
    "write_manifest",
    "run_waves",
    "settle_shards",
    "merge_shards",
    "validate_results",
    "publish_results",
    "report_job",
    "check_outcome",
]


@pytest.fixture
def dag() -> DAG:
    with DAG("somebodys", schedule=None, start_date=datetime(2026, 1, 1)) as made:
        for name in ("reviews", "tickets"):
            with TaskGroup(name):
                job_tasks(JobSpec(job_file=f"{name}.yaml", outlet=Asset(name)))
    return made


def test_the_stages_follow_each_other_in_the_order_of_the_walk(dag: DAG) -> None:
    for stage, following in pairwise(STAGES):
        task = dag.get_task(f"reviews.{stage}")
        assert f"reviews.{following}" in task.downstream_task_ids


def test_two_jobs_in_one_dag_do_not_touch_each_other(dag: DAG) -> None:
    assert {t.task_id for t in dag.leaves} == {"reviews.check_outcome", "tickets.check_outcome"}
    for task in dag.tasks:
        group = task.task_id.split(".")[0]
        assert all(up.startswith(f"{group}.") for up in task.upstream_task_ids)


def test_check_outcome_watches_every_task_of_its_own_job(dag: DAG) -> None:
    outcome = dag.get_task("tickets.check_outcome")
    planner, watched = outcome.op_args
    assert planner == "tickets.plan_job"
    assert watched == [f"tickets.{stage}" for stage in STAGES[:-1]]


def test_only_publishing_wakes_consumers(dag: DAG) -> None:
    with_outlets = {t.task_id: t.outlets for t in dag.tasks if t.outlets}
    assert with_outlets == {
        "reviews.publish_results": [Asset("reviews")],
        "tickets.publish_results": [Asset("tickets")],
    }


def test_a_job_may_wake_nobody_or_an_alias() -> None:
    with DAG("two", schedule=None, start_date=datetime(2026, 1, 1)) as made:
        with TaskGroup("quiet"):
            job_tasks(JobSpec(job_file="a.yaml"))
        with TaskGroup("alias"):
            job_tasks(JobSpec(outlet=AssetAlias("shardline")))
    assert made.get_task("quiet.publish_results").outlets == []
    assert made.get_task("alias.publish_results").outlets == [AssetAlias("shardline")]


@pytest.mark.protocol(19)
def test_a_replay_goes_through_the_same_stages_from_the_waves_on() -> None:
    with DAG("again", schedule=None, start_date=datetime(2026, 1, 1)) as dag:
        replay_tasks(AssetAlias("shardline"))
    stages = ["open_replay", "cut_replay", *STAGES[STAGES.index("run_waves") :]]
    assert {task.task_id for task in dag.tasks} == set(stages)
    for stage, following in pairwise(stages):
        assert following in dag.get_task(stage).downstream_task_ids
    planner, watched = dag.get_task("check_outcome").op_args
    assert (planner, watched) == ("open_replay", stages[:-1])
