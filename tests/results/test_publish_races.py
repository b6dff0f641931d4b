"""Publishers that race as real processes, on disk and on a real S3 server, and lost replies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import polars as pl
import pytest

from shardline.errors import TransientError
from shardline.layout import published
from shardline.plan import Plan
from shardline.results.delta import open_table
from shardline.results.files import published_files
from shardline.results.merge import merge_shards
from shardline.results.outcome import check_outcome
from shardline.results.publish import current_publication, history, publish_results
from shardline.results.settle import settle_shards
from shardline.results.verify import verify_job
from shardline.store import Store, open_store
from tests.results.answers import NOW, answer_all, result, small_job
from tests.s3_server import s3_server

pytestmark = pytest.mark.slow

ROWS: list[Any] = [{"id": f"d{i}", "text": f"text {i % 6}"} for i in range(9)]
PUBLISH = """
import sys
from shardline.errors import Superseded
from shardline.plan import read_plan
from shardline.results.publish import publish_results
from shardline.store import open_store

root, job_id, force = sys.argv[1:]
store = open_store(root)
plan = read_plan(store, job_id)
print("ready", flush=True)
sys.stdin.readline()
try:
    found = publish_results(store, plan, force=force == "force")
    print("published" if found.is_new else "already")
except Superseded:
    print("superseded")
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with s3_server() as env:
        client = boto3.client("s3", endpoint_url=env["AWS_ENDPOINT_URL"], **keys(env))
        client.create_bucket(Bucket="races")
        client.close()
        yield env


def keys(env: dict[str, str]) -> dict[str, str]:
    return {
        "aws_access_key_id": env["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": env["AWS_SECRET_ACCESS_KEY"],
        "region_name": env["AWS_REGION"],
    }


@pytest.fixture(params=["disk", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "disk":
        return str(tmp_path / "root")
    for name, value in request.getfixturevalue("s3").items():
        monkeypatch.setenv(name, value)
    return f"s3://races/{tmp_path.name}"


def merged(
    folder: Path, store: Store, rerun: int, partition: str | None = None, minutes: int = 0
) -> Plan:
    """A job that waits to be published."""
    now = NOW + timedelta(minutes=minutes)
    _, plan = small_job(folder, ROWS, store=store, rerun=rerun, partition=partition, now=now)
    answer_all(store, plan, lambda r: result(r, f"answer of run {rerun}"))
    settle_shards(store, plan, generation=1)
    merge_shards(store, plan)
    store.put_once(plan.layout.validation, b"{}")
    return plan


def race(root: str, plans: list[Plan], *, force: bool = False) -> list[str]:
    """Publish all at the same moment, each in its own process; what each said."""
    how = "force" if force else "plain"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PUBLISH, root, plan.job_id, how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": "include"},
        )
        for plan in plans
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return said


def rows_by_job(store: Store, table: str = "test-job") -> dict[str, int]:
    opened = open_table(store, table)
    assert opened is not None
    return dict(opened.to_pandas()["job_id"].value_counts())


@pytest.mark.protocol(18)
def test_one_job_published_four_times_at_once_is_committed_once(tmp_path: Path, root: str) -> None:
    store = open_store(root)
    plan = merged(tmp_path, store, 0)
    said = race(root, [plan] * 4)
    assert sorted(said) == ["already", "already", "already", "published"]
    assert rows_by_job(store) == {plan.job_id: 9}
    assert len(history(store, "test-job")) == 1


@pytest.mark.protocol(18)
def test_two_jobs_racing_for_one_partition_end_with_the_later_plan(
    tmp_path: Path, root: str
) -> None:
    store = open_store(root)
    early = merged(tmp_path, store, 0)
    late = merged(tmp_path, store, 1, minutes=5)
    said = race(root, [early, late, early, late])
    assert said[1:4:2].count("published") == 1
    assert set(said[0:4:2]) <= {"published", "already", "superseded"}
    assert rows_by_job(store) == {late.job_id: 9}
    assert check_outcome(store, late).publication.rows == 9
    assert verify_job(store, late).holds


@pytest.mark.protocol(18)
def test_forced_publishers_each_commit_whole_and_the_last_stays(tmp_path: Path, root: str) -> None:
    store = open_store(root)
    plans = [merged(tmp_path, store, n, minutes=n) for n in range(3)]
    race(root, plans, force=True)
    current = current_publication(store, "test-job", None)
    assert current is not None
    assert rows_by_job(store) == {current.job_id: 9}
    assert {p.job_id for p in history(store, "test-job")} == {plan.job_id for plan in plans}


@pytest.mark.protocol(18)
def test_partitions_published_at_once_are_all_there(tmp_path: Path, root: str) -> None:
    store = open_store(root)
    plans = [merged(tmp_path, store, n, f"2026-11-0{n + 1}") for n in range(4)]
    assert race(root, plans) == ["published"] * 4
    assert rows_by_job(store) == {plan.job_id: 9 for plan in plans}


def test_what_is_published_on_s3_is_read_by_file_list_and_by_delta(
    tmp_path: Path, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    store = open_store("s3://races/readers")
    for rerun in range(2):
        plan = merged(tmp_path, store, rerun, minutes=rerun)
        publish_results(store, plan)
    options = {"endpoint_url": s3["AWS_ENDPOINT_URL"], "aws_allow_http": "true", **keys(s3)}
    options["region"] = options.pop("region_name")
    files = published_files(store, "test-job")
    assert all(path.startswith("s3://races/readers/published/test-job/dt=all/") for path in files)
    frame = pl.read_parquet(files, storage_options=options)
    assert set(frame["output"]) == {"answer of run 1"}
    assert rows_by_job(store) == {plan.job_id: 9}
    assert verify_job(store, plan).holds


# the reply to a write is lost: between the store and us stands a proxy that hangs up


@contextmanager
def losing_reply(upstream: str, victim: str) -> Iterator[tuple[str, list[str]]]:
    """The proxy's address, and (once it has ended) the lines that say what it lost."""
    program = [sys.executable, str(Path(__file__).with_name("losing_proxy.py")), upstream, victim]
    lost: list[str] = []
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None
        port = int(proxy.stdout.readline())
        try:
            yield f"http://127.0.0.1:{port}", lost
        finally:
            proxy.terminate()
            lost += proxy.stdout.read().splitlines()


@pytest.mark.protocol(8, 18)
@pytest.mark.parametrize(
    "victim", ["part-000000.parquet", "merge.json", "_delta_log/00000000000000000001.json"]
)
def test_a_publish_whose_reply_is_lost_on_s3_is_committed_once(
    tmp_path: Path, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    root = f"s3://races/{tmp_path.name}"
    with losing_reply(s3["AWS_ENDPOINT_URL"], victim) as (endpoint, lost):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        store = open_store(root)
        plan = merged(tmp_path, store, 0)
        try:
            publish_results(store, plan)
        except TransientError:
            publish_results(store, plan)
        assert rows_by_job(store) == {plan.job_id: 9}
        assert len(history(store, "test-job")) == 1
        assert verify_job(store, plan).holds
        assert len(published_files(store, "test-job")) == len(
            [f for f in store.list(f"{published('test-job')}/") if f.path.endswith(".parquet")]
        )
    assert lost
    assert lost[0].startswith("lost 200 ")
