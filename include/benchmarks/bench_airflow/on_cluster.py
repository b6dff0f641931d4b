"""What Airflow and the Kubernetes API cost a shard in a pod: `python -m benchmarks.bench_airflow.on_cluster`.

A whole Airflow runs the dag `infer_on_gpu` against the API server and scheduler of the test cluster.
Nodes, GPUs and pods only pretend (kwok), so there may be hundreds; their workers' objects are put by
this process (see `pretend_workers`). Three measurements:

cost    a few slots, pods of half a minute: CPU of everything from the wave's start to its end, by shard.
peer    the same pods by Airflow's own operator and executor.
scale   all slots taken; then pods end at the pace of 1,000 pods of 58 minutes; then as fast as the control
        plane takes it.

The last line is one JSON object. It needs what tests/cluster/run.sh exports.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import boto3
import yaml
from kubernetes import client, config

from benchmarks.bench_airflow.__main__ import job as job_of
from benchmarks.bench_airflow.__main__ import write_corpus
from benchmarks.bench_airflow.costs import Span, memory_mb, read
from benchmarks.bench_airflow.pod_lives import turnarounds
from benchmarks.bench_airflow.pretend_workers import PretendWorkers
from deploy.embedded.environment import PROJECT
from deploy.embedded.stack import ENDED, EmbeddedAirflow, embedded_airflow
from shardline.cli.run_job import prepare_job
from shardline.cli.screen import Screen
from shardline.corpus.plan_job import plan_job
from shardline.job_reader import parse_job
from shardline.plan import Plan
from shardline.settings import Settings
from shardline.store import Store, open_store
from tests.s3_server import s3_server

AIRFLOW = ("scheduler", "triggerer", "api-server", "dag-processor", "postgres")
KUBERNETES = ("kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager", "kwok")
API_SERVER = "kube-apiserver"

FEW = 16
"""Slots of `cost` and `peer`: so many pods had the run of KubernetesPodOperator that took 4.1 s."""
RUN_S = 30.0
POD_MINUTES, PODS = 58, 1_000
PACE_PER_MIN = PODS / POD_MINUTES
PACE_S = 300.0
"""How long pods end at that pace: some 85 of them; half as many as there are, where there are few."""
CALM_S = 60.0
FLOOD = 200
"""Shards that are sent when nothing holds them back."""
BACKLOG = 48
"""Slots without a running pod, when the control plane is given all it can take."""
GPUS_PER_NODE = 8
TICK_S = 0.5
MEMORY_EVERY_S = 20.0
TIMEOUT_S = 3_600.0
PEER_DAGS = Path(__file__).with_name("peer_dags")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=int, default=64, help="of `cost` and `peer`")
    parser.add_argument("--pods", type=int, default=500, help="at once in `scale`; 0 leaves it out")
    parser.add_argument("--skip-peer", action="store_true")
    given = parser.parse_args()
    if given.shards <= FEW or 0 < given.pods < FEW:
        parser.error(f"a turnaround needs more shards than slots, {FEW}, and `scale` as many pods")
    with bench() as ground:
        figures = measure_ours(ground, given.shards, given.pods)
        if not given.skip_peer:
            figures |= measure_peer(ground, given.shards)
    print(json.dumps(figures))


@dataclass
class Ground:
    """The cluster, the store, and a folder for the time of the bench."""

    core: client.CoreV1Api
    namespace: str
    folder: Path
    env: dict[str, str]

    @property
    def peer_pod(self) -> Path:
        return self.folder / "peer-pod.json"


@contextmanager
def bench() -> Iterator[Ground]:
    """An empty namespace, an empty bucket, and the environment by which pods go to fake nodes."""
    if "CLUSTER_STATE" not in os.environ:
        raise SystemExit("this runs on the cluster of tests/cluster: tests/cluster/bench.sh")
    config.load_kube_config(os.environ["KUBECONFIG"])
    core = client.CoreV1Api()
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as name, s3_server() as s3:
        os.environ.update(s3)
        boto3.client("s3").create_bucket(Bucket="lake")
        wanted = client.V1Namespace(metadata=client.V1ObjectMeta(generate_name="bench-"))
        namespace = core.create_namespace(wanted).metadata.name
        try:
            _wait_for_account(core, namespace)
            folder = Path(name)
            yield Ground(core, namespace, folder, {**s3, **environment(folder, namespace)})
        finally:
            core.delete_namespace(namespace)


def environment(folder: Path, namespace: str) -> dict[str, str]:
    """Shardline's settings: defaults, but for where the pods go."""
    block = {
        "node_selector": {"type": "fake"},
        "tolerations": [{"key": "fake", "operator": "Exists"}],
    }
    clouds = folder / "clouds.yaml"
    clouds.write_text(yaml.safe_dump({"fake": block}))
    connection = {
        "conn_type": "kubernetes",
        "extra": {"kube_config_path": os.environ["KUBECONFIG"]},
    }
    return {
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(connection),
        "SHARDLINE_ROOT": "s3://lake/bench",
        "SHARDLINE_WORKER_IMAGE": "localhost/pretended:1",
        "SHARDLINE_GPU_NAMESPACE": namespace,
        "SHARDLINE_GPU_CLOUD": "fake",
        "SHARDLINE_GPU_CLOUDS_FILE": str(clouds),
    }


def _wait_for_account(core: client.CoreV1Api, namespace: str) -> None:
    """Before its default account is there, a namespace takes no pods."""
    while not core.list_namespaced_service_account(namespace).items:
        time.sleep(0.2)


def make_nodes(gpus: int) -> None:
    nodes = -(-gpus // GPUS_PER_NODE)
    script = PROJECT / "tests" / "cluster" / "fakenodes.sh"
    subprocess.run([script, str(nodes), str(GPUS_PER_NODE)], check=True)


def cut(ground: Ground, name: str, shards: int) -> tuple[Store, Plan]:
    """A job of one document a shard, planned and cut in this process."""
    corpus = write_corpus(ground.folder, shards)
    given = job_of(corpus, name)
    given |= {"run_on": "gpu", "gpu": given.pop("local")}
    store = open_store(ground.env["SHARDLINE_ROOT"])
    plan = plan_job(
        parse_job(given, folder=ground.folder),
        store=store,
        settings=Settings(worker_image=ground.env["SHARDLINE_WORKER_IMAGE"]),
        partition=None,
        now=datetime.now(UTC),
    )
    prepare_job(store, plan, Screen(is_silent=True))
    return store, plan


@dataclass
class Run:
    """One dag run while it is measured: who is asked, and the pods it sends."""

    stack: EmbeddedAirflow
    workers: PretendWorkers
    dag_id: str
    run_id: str
    pids: dict[str, int] = field(default_factory=dict)
    peak_mb: dict[str, int] = field(default_factory=dict)
    _asked_at: float = 0.0

    def __post_init__(self) -> None:
        self.pids = program_pids(self.stack)

    def is_over(self) -> bool:
        """Whether all of it is done. Raises RuntimeError when it failed: its figures mean nothing."""
        state = self.stack.api.run(self.dag_id, self.run_id)["state"]
        if state == "failed":
            raise RuntimeError(f"{self.dag_id} {self.run_id} failed")
        return state in ENDED

    def during(self, is_over: Callable[[], bool], act: Callable[[], None] = lambda: None) -> Span:
        """Act twice a second until it is over; what it cost.

        Raises:
            TimeoutError: it did not end within an hour.
            StackError: Airflow died meanwhile.
        """
        start, deadline = read(self.pids), time.monotonic() + TIMEOUT_S
        while not is_over():
            self.stack.stack.check()
            self.workers.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.run_id}: not there after {TIMEOUT_S:.0f} s")
            act()
            self._weigh()
            time.sleep(TICK_S)
        return Span(start, read(self.pids))

    def for_s(self, seconds: float, act: Callable[[], None] = lambda: None) -> Span:
        end = time.monotonic() + seconds
        return self.during(lambda: time.monotonic() >= end, act)

    def end_aged(self, age_s: float) -> None:
        """End the pods that have run for so long."""
        born = datetime.now(UTC) - timedelta(seconds=age_s)
        aged = [pod for pod in self.workers.running if pod.started_at and pod.started_at <= born]
        self.workers.end(aged)

    def _weigh(self) -> None:
        if time.monotonic() - self._asked_at < MEMORY_EVERY_S:
            return
        for name, size in memory_mb(self.pids).items():
            self.peak_mb[name] = max(size, self.peak_mb.get(name, 0))
        self._asked_at = time.monotonic()


def program_pids(stack: EmbeddedAirflow) -> dict[str, int]:
    """Airflow's programs and the cluster's, by name."""
    pids = {name: pid for name, pid in stack.stack.pids().items() if pid}
    state = Path(os.environ["CLUSTER_STATE"])
    for name in KUBERNETES:
        pids[name] = int((state / f"{name.removeprefix('kube-')}.pid").read_text())
    return pids


@contextmanager
def started(
    stack: EmbeddedAirflow,
    ground: Ground,
    dag_id: str,
    conf: dict[str, Any],
    job: tuple[Store, Plan] | None = None,
) -> Iterator[Run]:
    """A run of a dag, and its pods' workers."""
    workers = PretendWorkers(ground.core, ground.namespace, job)
    workers.start()
    try:
        yield Run(stack, workers, dag_id, stack.trigger(dag_id, conf))
    finally:
        workers.stop()


def measure_ours(ground: Ground, shards: int, pods: int) -> dict[str, Any]:
    """`cost`, then `scale`, in one Airflow with all of the project's dags."""
    make_nodes(max(pods, FEW))
    pools = {"gpu": pods or 1, "gpu_short": FEW}
    dags = ("infer_on_gpu", "infer_on_gpu_short")
    home = ground.folder / "airflow"
    with embedded_airflow(home, env=ground.env, dags=dags, pools=pools) as stack:
        figures = measure_cost(stack, ground, shards)
        if pods:
            figures |= measure_scale(stack, ground, pods)
    return figures


def measure_cost(stack: EmbeddedAirflow, ground: Ground, shards: int) -> dict[str, Any]:
    """Few slots, short pods."""
    job = cut(ground, "bench-cost", shards)
    conf = {"job_id": job[1].job_id, "lo": 0, "hi": shards, "generation": 1}
    with started(stack, ground, "infer_on_gpu_short", conf, job) as run:
        span = run.during(run.is_over, lambda: run.end_aged(RUN_S))
        keep_for_peer(run.workers.last_pod, ground.peer_pod)
    say("cost", span, shards)
    print(
        f"       load {os.getloadavg()[0]:.1f} at the end, {span.other_cores:.2f} cores of other work"
    )
    waits = [t.idle_s for t in turnarounds(run.workers.lives.values(), FEW)]
    return {
        "control_plane_cpu_s_per_shard": round(span.cpu_s(*AIRFLOW) / shards, 2),
        "api_server_cpu_s_per_shard": round(span.cpu_s(API_SERVER) / shards, 2),
        "cost_turnaround_s": round(median(waits), 1),
        "cost_other_cores": round(span.other_cores, 2),
    }


def measure_peer(ground: Ground, shards: int) -> dict[str, Any]:
    """Airflow's own operator and executor, nothing of ours."""
    env = {
        **ground.env,
        "BENCH_PEER_POD": str(ground.peer_pod),
        # its trigger refuses a connection that names a file beside the operator's own
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps({"conn_type": "kubernetes"}),
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
    }
    home = ground.folder / "peer"
    with (
        embedded_airflow(
            home, dags_folder=PEER_DAGS, env=env, dags=["peer_pods"], pools={"gpu": FEW}
        ) as stack,
        started(stack, ground, "peer_pods", {"shards": shards}) as run,
    ):
        span = run.during(run.is_over, lambda: run.end_aged(RUN_S))
    say("peer", span, shards)
    pods = len(run.workers.lives)
    print(f"       {pods} pods for {shards} shards, {span.other_cores:.2f} cores of other work")
    waits = [t.idle_s for t in turnarounds(run.workers.lives.values(), FEW)]
    return {
        "peer_control_plane_cpu_s_per_shard": round(span.cpu_s(*AIRFLOW) / shards, 2),
        "peer_api_server_cpu_s_per_shard": round(span.cpu_s(API_SERVER) / shards, 2),
        "peer_turnaround_s": round(median(waits), 1),
        "peer_pods": pods,
    }


def keep_for_peer(pod: dict[str, Any], file: Path) -> None:
    """One of our pods as a template: without name, labels, finalizer and what the cluster added."""
    spec = {name: value for name, value in pod["spec"].items() if name != "nodeName"}
    spec["volumes"] = [v for v in spec["volumes"] if not v["name"].startswith("kube-api-access")]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": spec}))


def measure_scale(stack: EmbeddedAirflow, ground: Ground, pods: int) -> dict[str, Any]:
    """All slots taken: filled, held, at the pace of a large fleet, and as fast as it goes."""
    pace_s = min(PACE_S, 30 * pods / PACE_PER_MIN)
    shards = min(pods + round(pace_s * PACE_PER_MIN / 60) + FLOOD, 1_000)
    job = cut(ground, "bench-scale", shards)
    conf = {"job_id": job[1].job_id, "lo": 0, "hi": shards, "generation": 1}
    backlog = min(BACKLOG, pods // 2)
    with started(stack, ground, "infer_on_gpu", conf, job) as run:
        workers = run.workers

        def at_pace() -> None:
            nonlocal due
            while time.monotonic() >= due:
                workers.end(random.sample(workers.running, 1))
                due += 60 / PACE_PER_MIN

        def all_it_takes() -> None:
            running = workers.running
            workers.end(running[: max(0, backlog - (pods - len(running)))])

        def the_rest() -> None:
            workers.end(workers.running[: max(0, backlog - workers.unjudged)])

        fill = run.during(lambda: len(workers.running) >= pods)
        say("fill", fill, pods)
        calm = run.for_s(CALM_S)
        say("calm", calm)
        pace_at, due = datetime.now(UTC), time.monotonic()
        pace = run.for_s(pace_s, at_pace)
        paced_until = datetime.now(UTC)
        say("pace", pace)
        before = len(workers.lives)
        flood = run.during(lambda: len(workers.lives) >= shards, all_it_takes)
        sent = len(workers.lives) - before
        say("flood", flood, sent)
        paced = [
            t.idle_s
            for t in turnarounds(workers.lives.values(), pods)
            if pace_at <= t.left_at < paced_until
        ]
        print(
            f"       {len(paced)} slots stood idle for {median(paced):.0f} s at that pace (median)"
        )
        drain = run.during(run.is_over, the_rest)
        say("drain", drain, pods)
    whole = Span(fill.start, drain.end)
    say("whole", whole, shards)
    for name, size in run.peak_mb.items():
        print(f"       {name:24} {size} MB at most")
    rate = 60 * sent / flood.wall_s
    return {
        "pods_in_flight": pods,
        "fill_shards_per_min": round(60 * pods / fill.wall_s, 1),
        "pod_turnaround_s": round(median(paced), 1),
        "pod_turnaround_p90_s": round(quantiles(paced, n=10)[-1], 1),
        "shards_per_min": round(rate, 1),
        "margin": round(rate / PACE_PER_MIN, 2),
        "paced_airflow_cores": round(pace.cores(*AIRFLOW), 2),
        "paced_triggerer_cores": round(pace.cores("triggerer"), 3),
        "paced_scheduler_cores": round(pace.cores("scheduler"), 2),
        "paced_api_server_cores": round(pace.cores(API_SERVER), 3),
        "calm_triggerer_cores": round(calm.cores("triggerer"), 3),
        "calm_api_server_cores": round(calm.cores(API_SERVER), 3),
        "scale_cpu_s_per_shard": round(whole.cpu_s(*AIRFLOW) / shards, 2),
        "airflow_mb": sum(run.peak_mb[name] for name in AIRFLOW),
        "kubernetes_mb": sum(run.peak_mb[name] for name in KUBERNETES),
        "scale_other_cores": round(whole.other_cores, 2),
    }


def say(what: str, span: Span, shards: int | None = None) -> None:
    """One line for people: seconds of each program, by shard where they belong to shards."""
    names = (*AIRFLOW, *KUBERNETES)
    by = shards or span.wall_s
    unit = "CPU s a shard" if shards else "cores"
    parts = ", ".join(f"{name} {span.cpu_s(name) / by:.3f}" for name in names)
    whole = f"Airflow {span.cpu_s(*AIRFLOW) / by:.2f}"
    of = f"{shards} shards in " if shards else ""
    print(f"{what:6} {of}{span.wall_s:.0f} s, {unit}: {whole} ({parts})", flush=True)


if __name__ == "__main__":
    main()
