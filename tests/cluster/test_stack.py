"""A whole Airflow against the cluster: real triggers, retries and buttons around the shards' pods."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import CoreV1Api, V1Pod

from deploy.embedded.stack import EmbeddedAirflow, embedded_airflow
from shardline.plan import read_plan
from shardline.results.verify import verify_job
from shardline.store import open_store
from tests.cluster.gpu_ground import gpu_environment, until
from tests.cluster.ground import Ground
from tests.factories import make_rows

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1_800)]

WAVES = "infer_on_gpu"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stack")
    (folder / "corpus").mkdir()
    lines = "".join(json.dumps(row) + "\n" for row in make_rows(100))
    (folder / "corpus" / "part-0.jsonl").write_text(lines)
    return folder


@pytest.fixture(scope="module")
def airflow(
    ground: Ground, bucket: dict[str, str], namespace: str, gpus: int, secret: str, folder: Path
) -> Iterator[EmbeddedAirflow]:
    env = {**bucket, **gpu_environment(ground, folder, namespace, secret)}
    dags = ["batch_inference", WAVES]
    with embedded_airflow(folder / "airflow", env=env, dags=dags) as airflow:
        yield airflow


@pytest.fixture
def pods(api: CoreV1Api, namespace: str) -> Callable[[], list[V1Pod]]:
    selector = "app.kubernetes.io/name=shardline-worker"
    return lambda: list(api.list_namespaced_pod(namespace, label_selector=selector).items)


def job(folder: Path, name: str, latency_s: float) -> dict[str, Any]:
    engine_args = {"max_num_seqs": 8, "latency_s": latency_s}
    return {
        "name": name,
        "corpus": {"uri": str(folder / "corpus"), "id": "id"},
        "messages": [{"role": "user", "content": "{{ text }}"}],
        "parameters": {"max_tokens": 8},
        "run_on": "gpu",
        "gpu": {"model": "stub", "engine": "stub", "engine_args": engine_args},
        "shards": {"max_requests": 50},
    }


def wave_of(airflow: EmbeddedAirflow, name: str) -> str:
    runs = [run["dag_run_id"] for run in airflow.api.runs(WAVES)]
    return next(run for run in runs if run.startswith(name))


@pytest.mark.protocol(11)
def test_evicted_pods_come_back_by_airflow_s_retries_and_the_job_is_published(
    airflow: EmbeddedAirflow,
    pods: Callable[[], list[V1Pod]],
    api: CoreV1Api,
    namespace: str,
    folder: Path,
) -> None:
    store = open_store(f"s3://lake/{folder.name}")
    run = airflow.trigger("batch_inference", {"job": job(folder, "evicted", 1.5)})
    until("segment", lambda: any("/segments/" in o.path for o in store.list("jobs/")), 600)
    for pod in pods():
        name = pod.metadata.name
        api.create_namespaced_pod_eviction(name, namespace, {"metadata": {"name": name}})
    assert airflow.wait("batch_inference", run, 900) == "success"
    wave = wave_of(airflow, "evicted")
    shards = [
        task for task in airflow.api.task_instances(WAVES, wave) if task["task_id"] == "infer_shard"
    ]
    assert max(task["try_number"] for task in shards) == 2
    assert all(str(task["rendered_map_index"]).startswith("shard-") for task in shards)
    logs = [airflow.api.log(WAVES, wave, "infer_shard", n, 1) for n in range(len(shards))]
    assert any("retry, free, 0 of 3" in log for log in logs)
    verified = verify_job(store, read_plan(store, wave.rpartition("-w0")[0]))
    assert verified.holds, verified.differences
    assert not pods()


@pytest.mark.protocol(20)
def test_a_wave_that_is_marked_failed_leaves_no_pod(
    airflow: EmbeddedAirflow, pods: Callable[[], list[V1Pod]], folder: Path
) -> None:
    run = airflow.trigger("batch_inference", {"job": job(folder, "stopped", 5.0)})
    until("running pods", lambda: [p.status.phase for p in pods()] == ["Running"] * 2, 600)
    wave = wave_of(airflow, "stopped")
    for dag_id, run_id in (("batch_inference", run), (WAVES, wave)):
        airflow.api.request("PATCH", f"dags/{dag_id}/dagRuns/{run_id}", json={"state": "failed"})
    until("end of the pods", lambda: not pods(), 240)
