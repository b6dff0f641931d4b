"""One dag per job file with a schedule; a broken file breaks no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk import DAG

from shardline_airflow.scheduled import asset_of, make_dag, scheduled_jobs

JOB = """
name: {name}
owner: reviews-team
corpus: {{uri: "corpus/dt={{{{ partition }}}}/*.jsonl"}}
messages: [{{role: user, content: "{{{{ text }}}}"}}]
local: {{model: stub, engine: stub}}
schedule: "@daily"
"""


def write(folder: Path, file: str, name: str, without: str = "") -> None:
    text = JOB.format(name=name)
    (folder / file).write_text(
        "\n".join(line for line in text.splitlines() if not without or without not in line)
    )


def dags_of(folder: Path) -> dict[str, DAG]:
    return {f.dag_id: make_dag(f, str(folder), "how to") for f in scheduled_jobs(folder)}


def test_a_job_file_with_a_schedule_becomes_a_dag_of_its_name(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "reviews-daily")
    dag = dags_of(tmp_path)["reviews-daily"]
    assert dag.schedule.__class__.__name__ == "CronPartitionTimetable"
    assert (dag.catchup, dag.max_active_runs) == (False, 1)
    assert [task.task_id for task in dag.leaves] == ["check_outcome"]
    assert dag.get_task("plan_job").owner == "reviews-team"


def test_a_job_file_without_a_schedule_has_no_dag(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "reviews", without="schedule")
    assert dags_of(tmp_path) == {}


def test_its_table_is_an_asset_below_the_root(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "reviews")
    (found,) = scheduled_jobs(tmp_path)
    assert found.job is not None
    asset = asset_of(found.job, str(tmp_path))
    assert (asset.name, asset.uri) == ("reviews", f"file://{tmp_path}/published/reviews")
    assert asset_of(found.job, "s3://lake/root/").uri == "s3://lake/root/published/reviews"
    (outlet,) = dags_of(tmp_path)["reviews"].get_task("publish_results").outlets
    assert outlet == asset


@pytest.mark.parametrize("broken", ["corpus", "messages", "local"])
def test_a_broken_job_file_keeps_its_dag_which_says_what_is_wrong(
    tmp_path: Path, broken: str
) -> None:
    write(tmp_path, "a.yaml", "reviews", without=broken)
    write(tmp_path, "b.yaml", "tickets")
    dags = dags_of(tmp_path)
    assert set(dags) == {"reviews", "tickets"}
    assert dags["reviews"].schedule is None
    assert "a.yaml" in dags["reviews"].doc_md
    assert broken in dags["reviews"].doc_md
    assert dags["tickets"].schedule is not None


@pytest.mark.parametrize("text", ["", "- 1", "name: [", "name: ../x\n", "\udcff"])
def test_a_file_that_is_no_job_at_all_is_named_after_itself(tmp_path: Path, text: str) -> None:
    (tmp_path / "my jobs.yaml").write_text(text, errors="surrogateescape")
    (dag_id,) = dags_of(tmp_path)
    assert dag_id == "my-jobs"


def test_the_second_job_file_of_one_name_is_broken(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "reviews")
    write(tmp_path, "b.yaml", "reviews")
    dags = dags_of(tmp_path)
    assert set(dags) == {"reviews", "reviews--b"}
    assert "also the name of a.yaml" in dags["reviews--b"].doc_md
