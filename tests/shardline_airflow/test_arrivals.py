"""A scheduled job waits for its corpus, and says clearly when it does not come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from airflow.sdk import DAG
from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR
from airflow.sdk.exceptions import TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization

from shardline.corpus.sources import bucket_store
from shardline.runners.local import worker_environment
from shardline.store import use_s3_keys
from shardline_airflow import stages
from shardline_airflow.arrivals import wait_for_corpus
from shardline_airflow.retries import GivenUp
from shardline_airflow.scheduled import make_dag, scheduled_jobs
from tests.factories import make_job, make_rows
from tests.s3_server import KEY, SECRET, s3_server

JOB: dict[str, Any] = {
    "name": "reviews",
    "corpus": {"uri": "corpus/dt={{ partition }}"},
    "messages": [{"role": "user", "content": "{{ text }}"}],
    "local": {"model": "stub", "engine": "stub"},
    "schedule": "@daily",
}
S3 = "s3://lake/dt={{ partition }}/_SUCCESS"
DAY = "2026-11-28"


def dag_of(folder: Path, **corpus: Any) -> DAG:
    job = JOB | {"corpus": JOB["corpus"] | corpus}
    (folder / "reviews.yaml").write_text(json.dumps(job))
    (found,) = scheduled_jobs(folder)
    return make_dag(found, str(folder), "how to")


def task_of(folder: Path, wait_for: str, **options: Any) -> Any:
    job = make_job(folder, corpus__uri="c/{{ partition }}", corpus__wait_for=wait_for, **options)
    return wait_for_corpus(job, "lake")


def context_of(partition: str | None = DAY) -> dict[str, Any]:
    return {"dag_run": SimpleNamespace(partition_key=partition), "params": {}}


def deferred(task: Any, context: dict[str, Any]) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        task.execute(context)
    return caught.value


def test_nothing_waits_in_a_job_that_does_not_say_so(tmp_path: Path) -> None:
    assert "wait_for_corpus" not in dag_of(tmp_path).task_ids


def test_the_plan_comes_after_the_arrival(tmp_path: Path) -> None:
    dag = dag_of(tmp_path, wait_for=S3)
    wait = dag.get_task("wait_for_corpus")
    assert wait.downstream_task_ids == {"plan_job"}
    assert not wait.upstream_task_ids
    assert wait.deferrable
    assert wait.timeout == 12 * 3600
    assert "wait_for_corpus" in dag.get_task("check_outcome").op_args[1]
    assert dag.get_task("check_outcome").op_args[0] == "plan_job"


def test_a_date_that_waits_holds_up_no_other(tmp_path: Path) -> None:
    assert dag_of(tmp_path).max_active_runs == 1
    assert dag_of(tmp_path, wait_for=S3).max_active_runs == 4


def test_the_scheduler_gets_the_task_that_waits(tmp_path: Path) -> None:
    encoded = DagSerialization.to_dict(dag_of(tmp_path, wait_for=S3))
    tasks = [task["__var"] for task in encoded["dag"]["tasks"]]
    (wait,) = [task for task in tasks if task["task_id"] == "wait_for_corpus"]
    assert wait["_task_module"] == "shardline_airflow.arrivals"
    assert wait["template_fields"] == []


def test_the_wait_of_an_object_is_told_its_connection_and_its_time(tmp_path: Path) -> None:
    task = task_of(tmp_path, S3, corpus__wait_hours=0.5)
    assert (task.aws_conn_id, task.timeout) == ("lake", 1800)


def test_a_file_that_is_there_ends_the_wait_at_once(tmp_path: Path) -> None:
    (tmp_path / DAY).mkdir()
    (tmp_path / DAY / "_SUCCESS").touch()
    task_of(tmp_path, "./{{ partition }}/_SUCCESS").execute(context_of())


def test_a_file_that_comes_later_wakes_the_task(tmp_path: Path) -> None:
    task = task_of(
        tmp_path,
        (tmp_path / "{{ partition }}/_SUCCESS")
        .as_uri()
        .replace("%7B", "{")
        .replace("%7D", "}")
        .replace("%20", " "),
    )
    waiting = deferred(task, context_of())
    file = tmp_path / DAY / "_SUCCESS"
    assert waiting.trigger.serialize()[1]["filepath"] == str(file)
    file.parent.mkdir()
    file.touch()
    task.resume_execution(waiting.method_name, {"event": asyncio.run(first(waiting))}, context_of())


def test_what_does_not_come_in_time_is_one_clear_line(tmp_path: Path) -> None:
    task = task_of(tmp_path, S3, corpus__wait_hours=3)
    timeout = {"error": "Trigger timeout"}
    with pytest.raises(GivenUp) as caught:
        task.resume_execution(TRIGGER_FAIL_REPR, timeout, context_of())
    line = str(caught.value)
    assert line.startswith(f"corpus.wait_for: s3://lake/dt={DAY}/_SUCCESS did not come in 3 hours")
    assert "clear this task" in line


@pytest.mark.parametrize(("partition", "said"), [(None, "needs a partition"), ("*", "found '*'")])
def test_a_run_without_a_good_partition_waits_for_nothing(
    tmp_path: Path, partition: str | None, said: str
) -> None:
    with pytest.raises(GivenUp) as caught:
        task_of(tmp_path, S3).execute(context_of(partition))
    assert said in str(caught.value)


async def first(waiting: TaskDeferred) -> Any:
    """The payload of the trigger's first event."""
    async for event in waiting.trigger.run():
        return event.payload
    return None


# on a real S3 server, through an Airflow connection: the environment has no keys


@pytest.fixture(scope="module")
def lake() -> Iterator[Any]:
    with s3_server() as environment, pytest.MonkeyPatch.context() as patch:
        endpoint = environment["AWS_ENDPOINT_URL"]
        for name in environment:
            patch.delenv(name, raising=False)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for conn_id, secret in (("lake", SECRET), ("wrong_keys", "not-the-secret")):
            connection = {
                "conn_type": "aws",
                "login": KEY,
                "password": secret,
                "extra": {"endpoint_url": endpoint, "region_name": "us-east-1"},
            }
            patch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="lake")
        yield client
        client.close()


@pytest.fixture
def fresh() -> Iterator[None]:
    """What reach_buckets leaves in a process, which in Airflow ends with the task."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "ACCESS_KEY_ID",
            "SECRET_ACCESS_KEY",
            "REGION",
            "DEFAULT_REGION",
            "ENDPOINT_URL",
        ):
            patch.setenv(f"AWS_{name}", "")
            patch.delenv(f"AWS_{name}")
        bucket_store.cache_clear()
        yield
        use_s3_keys(None)
        bucket_store.cache_clear()


@pytest.mark.slow
def test_an_object_that_comes_later_wakes_the_task(tmp_path: Path, lake: Any, fresh: None) -> None:
    task = task_of(tmp_path, S3)
    waiting = deferred(task, context_of())
    assert waiting.trigger.serialize()[1]["bucket_key"] == f"s3://lake/dt={DAY}/_SUCCESS"
    assert waiting.timeout is not None
    lake.put_object(Bucket="lake", Key=f"dt={DAY}/_SUCCESS", Body=b"")
    event = asyncio.run(first(waiting))
    task.resume_execution(waiting.method_name, {"event": event}, context_of())
    task.execute(context_of())  # cleared: it is there at once


@pytest.mark.slow
def test_keys_that_are_refused_end_the_wait(tmp_path: Path, lake: Any, fresh: None) -> None:
    task = task_of(tmp_path, S3)
    task.aws_conn_id = "wrong_keys"
    with pytest.raises(GivenUp) as caught:
        task.execute(context_of("2026-11-29"))
    assert "the store refuses (status 403)" in str(caught.value)
    assert "not-the-secret" not in str(caught.value)


@pytest.mark.slow
def test_a_stage_reads_and_writes_buckets_with_the_keys_of_the_connection(
    tmp_path: Path,
    lake: Any,
    fresh: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = "".join(json.dumps(row) + "\n" for row in make_rows(3))
    lake.put_object(Bucket="lake", Key=f"in/dt={DAY}/a.jsonl", Body=rows.encode())
    job = JOB | {
        "corpus": {
            "uri": "s3://lake/in/dt={{ partition }}/*.jsonl",
            "wait_for": "s3://lake/in/dt={{ partition }}/_SUCCESS",
        }
    }
    (tmp_path / "reviews.yaml").write_text(json.dumps(job))
    monkeypatch.setenv("SHARDLINE_ROOT", "s3://lake/root")
    monkeypatch.setenv("SHARDLINE_JOBS_DIR", str(tmp_path))
    monkeypatch.setenv("SHARDLINE_AWS_CONN_ID", "lake")
    with pytest.raises(GivenUp) as caught:
        stages.plan_job("reviews.yaml", {}, DAY)
    assert "_SUCCESS is not there, so the corpus is not complete" in str(caught.value)
    lake.put_object(Bucket="lake", Key=f"in/dt={DAY}/_SUCCESS", Body=b"")
    plan = stages.plan_job("reviews.yaml", {}, DAY)
    stages.scan_corpus(plan.job_id, 0)
    assert lake.get_object(Bucket="lake", Key=f"root/jobs/{plan.job_id}/scan/00000.json")
    stages.check_ids(plan.job_id)
    stages.cut_shards(plan.job_id, 0)
    stages.write_manifest(plan.job_id)  # asks the published table too
    store, _ = stages.open_job(plan.job_id)
    assert store.delta_options["aws_secret_access_key"] == SECRET
    assert worker_environment({})["AWS_SECRET_ACCESS_KEY"] == SECRET
    assert SECRET not in caplog.text


@pytest.mark.slow
def test_a_connection_that_is_not_there_is_named(
    tmp_path: Path, lake: Any, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDLINE_ROOT", "s3://lake/root")
    monkeypatch.setenv("SHARDLINE_AWS_CONN_ID", "lakee")
    with pytest.raises(GivenUp, match="there is no Airflow connection lakee"):
        stages.scan_corpus("any-all-00000000", 0)
