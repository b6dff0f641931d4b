"""`make demo-cluster` as a stranger types it: a real Airflow, a real model, and pods with a GPU each."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import CoreV1Api

from shardline.plan import read_plan
from shardline.results.verify import verify_job
from shardline.store import Store, open_store
from tests.cluster.worker_pod import PROJECT
from tests.s3_server import s3_server

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1_800)]

ROWS = 20
OTHERS = ("SHARDLINE_", "AIRFLOW_", "AWS_")


@dataclass
class Ended:
    """A demo that has ended, in a home of its own."""

    said: str
    store: Store


@pytest.fixture(scope="module")
def demo(gpus: int) -> Iterator[Ended]:
    if "CLUSTER_STATE" not in os.environ:
        pytest.skip("the demo runs on the cluster of tests/cluster only")
    # not below pytest's folder, which is closed to the user that PostgreSQL runs as
    with tempfile.TemporaryDirectory(prefix="shardline-demo-") as home:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(OTHERS)}
        inherited.pop("MAKEFLAGS", None)
        done = subprocess.run(
            ["make", "-C", str(PROJECT), "demo-cluster", f"ROWS={ROWS}"],
            env=inherited | {"CLUSTER_DEMO": home},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6_000:]
        with s3_server(folder=Path(home) / "s3") as keys, pytest.MonkeyPatch.context() as patch:
            for name, value in keys.items():
                patch.setenv(name, value)
            yield Ended(done.stdout, open_store("s3://lake/demo"))


def test_every_row_of_the_corpus_is_accounted_for(demo: Ended) -> None:
    (job_id,) = demo.store.folders("jobs/")
    verified = verify_job(demo.store, read_plan(demo.store, job_id))
    assert verified.holds, verified.differences
    assert f"14,313 rows read = {ROWS} documents + " in demo.said
    assert re.search(r"agrees with people on \d+ of \d+ rated rows", demo.said)


def test_its_shard_ran_in_a_pod_whose_model_came_from_the_store(demo: Ended) -> None:
    (job_id,) = demo.store.folders("jobs/")
    plan = read_plan(demo.store, job_id)
    assert plan.job_file.run_on == "gpu"
    assert plan.job_file.engine.model.startswith("s3://")
    told = re.search(rf"done: {ROWS} results, .*; pod (shard-\S+) on (\S+)$", demo.said, re.M)
    assert told is not None, demo.said
    assert f"pods      1, on {told[2]}" in demo.said


def test_it_leaves_no_pod(demo: Ended, api: CoreV1Api) -> None:
    selector = "app.kubernetes.io/name=shardline-worker"
    left: list[Any] = api.list_pod_for_all_namespaces(label_selector=selector).items
    assert not [pod for pod in left if pod.metadata.namespace.startswith("demo-")]
