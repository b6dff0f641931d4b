"""`make demo-cluster`: the demo's job, its shards in pods of the test cluster.

Its job file and its corpus are those of `make demo`. The model lies on an object store, pods fetch it
into a folder of their node, and each has a GPU that only pretends: the engine in it is vLLM on a CPU.
Airflow runs in the cluster's box, beside the one of `make up`.

    ROWS=20    another number of reviews       FRESH=1   run the job again, though it is done
    EVICT=1    evict one pod at work           CLUSTER_DEMO=FOLDER   another home than var/demo-cluster
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import msgspec
import yaml
from kubernetes import client, config

from deploy.embedded import demo
from deploy.embedded.environment import PROJECT
from samples import smollm2
from shardline.layout import JobLayout
from shardline.rows import Progress
from shardline.runners.gpu import errand
from shardline.settings import Settings
from shardline.store import Store, open_store
from shardline_airflow.pod_api import PodApi
from tests.cluster.gpu_ground import gpu_environment, put_model
from tests.cluster.ground import Ground, read_ground
from tests.cluster.pods import Pod, make_namespace, make_secret
from tests.cluster.worker_pod import compile_engine
from tests.s3_server import s3_server

BUCKET = "lake"
MODEL = f"s3://{BUCKET}/models/{smollm2.FOLDER.name}"
WORKERS = {"app.kubernetes.io/name": "shardline-worker"}
LOOK_S = 1.0
ENGINES = {
    "SHARDLINE_GPU_PODS": "2",  # an engine on a CPU takes a core
    "SHARDLINE_GPU_CPU": "500m",
    "SHARDLINE_GPU_MEMORY": "6Gi",
    "SHARDLINE_GPU_EPHEMERAL_STORAGE": "2Gi",
    "SHARDLINE_SEGMENT_S": "10",
    "SHARDLINE_GPU_POLL_S": "2",
}


def job_in_pods(file: Path) -> dict[str, Any]:
    """The demo's job with `run_on: gpu`, and everything else as it is."""
    job: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    block = job.pop("local") | {"model": MODEL}
    return job | {"run_on": "gpu", "gpu": block}


@contextmanager
def store_for_pods(ground: Ground, folder: Path) -> Iterator[dict[str, str]]:
    """An object store that pods reach, with a bucket and the model; its environment."""
    assert ground.host, "TEST_HOST does not say at which address pods reach this machine"
    with s3_server(host=ground.host, folder=folder) as env:
        os.environ.update(env)
        store = boto3.client("s3")
        if BUCKET not in [bucket["Name"] for bucket in store.list_buckets()["Buckets"]]:
            store.create_bucket(Bucket=BUCKET)
        put_model(PROJECT / smollm2.FOLDER, MODEL)
        yield env


@contextmanager
def namespace_for_pods(api: client.CoreV1Api) -> Iterator[str]:
    """A namespace of this run's own; no pod is left in it."""
    name = make_namespace(api, "demo-")
    try:
        yield name
    finally:
        pods = PodApi(api, name)
        for pod in pods.find(WORKERS):  # of a run that was interrupted
            pods.remove(pod["metadata"]["name"], at_once=False)
        api.delete_namespace(name)


class Eviction(threading.Thread):
    """Evicts the first pod that has committed rows, as a node that is drained does."""

    def __init__(self, api: client.CoreV1Api, namespace: str, store: Store) -> None:
        super().__init__(name="eviction", daemon=True)
        self._api, self._pods, self._store = api, PodApi(api, namespace), store
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(LOOK_S):
            for pod in self._pods.find(WORKERS):
                done, total = self._rows(pod["metadata"]["labels"])
                if 0 < done < total:
                    name = pod["metadata"]["name"]
                    Pod(self._api, name, self._pods.namespace).evict()
                    print(f"demo: evicted {name} with {done} of {total} rows done", flush=True)
                    return

    def stop(self) -> None:
        self._over.set()

    def _rows(self, labels: dict[str, str]) -> tuple[int, int]:
        layout = JobLayout(labels[errand.JOB])
        found = self._store.read_or_none(
            layout.progress(labels[errand.SHARD], labels[errand.ATTEMPT])
        )
        if found is None:
            return 0, 0
        progress = msgspec.json.decode(found, type=Progress)
        return progress.rows_done, progress.rows_total


def main() -> int:
    ground = read_ground()
    assert ground.worker_image, "TEST_WORKER_IMAGE names no image of the worker"
    home = PROJECT / os.environ.get("CLUSTER_DEMO", "var/demo-cluster")
    cache = home / "models"
    cache.mkdir(parents=True, exist_ok=True)
    cache.chmod(0o777)  # pods are another user
    print("demo: compiling the engine for pods, which cannot (about 15 s)", flush=True)
    compile_engine()
    config.load_kube_config(ground.kubeconfig)
    api = client.CoreV1Api()
    with store_for_pods(ground, home / "s3") as keys, namespace_for_pods(api) as namespace:
        secret = make_secret(api, namespace, keys)
        os.environ.update(
            gpu_environment(ground, home, namespace, secret)
            | ENGINES
            | {
                "SHARDLINE_HOME": str(home),
                "SHARDLINE_ROOT": f"s3://{BUCKET}/demo",
                "SHARDLINE_GPU_CACHE": str(cache),
            }
        )
        in_pods = demo.Demo(
            "make demo-cluster",
            {"job": job_in_pods(Settings().jobs_dir / demo.JOB_FILE)},
            "infer_on_gpu",
            f"Airflow's logs are in {home / 'airflow' / 'logs'}",
            copies=home / "published",
        )
        eviction = Eviction(api, namespace, open_store(Settings().root))
        if os.environ.get("EVICT"):
            eviction.start()
        try:
            return demo.main(in_pods)
        finally:
            eviction.stop()


if __name__ == "__main__":
    sys.exit(main())
