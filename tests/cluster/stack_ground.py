"""A whole Airflow beside the cluster, and a job in it as Airflow, Kubernetes and the store record it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
from kubernetes.client import CoreV1Api, V1Pod

from deploy.embedded.component import Component, stop
from deploy.embedded.stack import EmbeddedAirflow
from shardline.attempts import read_attempts
from shardline.plan import Plan, keep_settings, read_plan
from shardline.results.verify import verify_job
from shardline.rows import Attempt
from shardline.runners.gpu.errand import JOB, label_value
from shardline.runners.shard import read_history
from shardline.segments import SegmentName
from shardline.shards.manifest import read_shards
from shardline.store import Store
from tests.cluster.worker_pod import PROJECT
from tests.waits import until

JOBS = "batch_inference"
WAVES = "infer_on_gpu"
ROWS = 100
SHARD_ROWS = 50
SLOTS = 8

STACK_ENV = {
    # what is stopped or killed is missed within seconds, not in two minutes
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "20",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    # an API server that was away takes its node for silent until the next lease: that must not count
    "SHARDLINE_GPU_UNREACHABLE_S": "45",
}


@dataclass
class ClusterStack:
    """The stack, and what its jobs are read from."""

    airflow: EmbeddedAirflow
    store: Store
    folder: Path
    core: CoreV1Api
    namespace: str

    def start(self, name: str, latency_s: float, **changes: Any) -> StackJob:
        """Start a job of two shards on the stub engine; a shard takes seven times `latency_s`."""
        job = StackJob(self, name, job_file(self.folder, name, latency_s, **changes))
        job.trigger()
        return job

    def pods(self) -> list[V1Pod]:
        """Every worker's pod in the namespace, in whatever state."""
        selector = "app.kubernetes.io/name=shardline-worker"
        return list(self.core.list_namespaced_pod(self.namespace, label_selector=selector).items)

    def scheduled(self) -> set[str]:
        """The pods that ever were given a node, by the scheduler's own events."""
        found = self.core.list_namespaced_event(self.namespace, field_selector="reason=Scheduled")
        return {event.involved_object.uid for event in found.items}

    def evict(self, pod: V1Pod) -> None:
        name = pod.metadata.name
        self.core.create_namespaced_pod_eviction(name, self.namespace, {"metadata": {"name": name}})

    def shardline(self, *arguments: str) -> str:
        """Run the command line and return what it printed."""
        command = [Path(sys.executable).with_name("shardline"), *arguments]
        env = {**os.environ, "SHARDLINE_ROOT": self.store.uri}
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout

    def pause(self, dag_id: str, is_paused: bool) -> None:
        self.airflow.api.request("PATCH", f"dags/{dag_id}", json={"is_paused": is_paused})

    def triggerer_ids(self) -> set[int]:
        """Of the triggerers that are heard from."""
        params = {"job_type": "TriggererJob", "is_alive": True}
        return {job["id"] for job in self.airflow.api.request("GET", "jobs", params=params)["jobs"]}

    @contextmanager
    def second_triggerer(self) -> Iterator[Component]:
        """Another one beside the stack's own, until the end of the block."""
        home = self.airflow.stack.home
        second = Component("second", home.pids / "second.json", home.logs / "second.log")
        command = [sys.executable, "-m", "airflow", "triggerer", "--skip-serve-logs"]
        second.start(command, self.airflow.stack.environment(), PROJECT)
        try:
            yield second
        finally:
            stop([second])

    def kill(self, component: str) -> None:
        """SIGKILL the component and every process it has started."""
        for process in family(self.airflow.stack.pids()[component]):
            with suppress(psutil.NoSuchProcess):  # it may go with its parent
                process.kill()
        until("its end", lambda: self.airflow.stack.pids()[component] is None)


def job_file(folder: Path, name: str, latency_s: float, **changes: Any) -> dict[str, Any]:
    engine_args = {"max_num_seqs": SLOTS, "latency_s": latency_s}
    return {
        "name": name,
        "corpus": {"uri": str(folder / "corpus"), "id": "id"},
        "messages": [{"role": "user", "content": "{{ text }}"}],
        "parameters": {"max_tokens": 8},
        "run_on": "gpu",
        "gpu": {"model": "stub", "engine": "stub", "engine_args": engine_args},
        "shards": {"max_requests": SHARD_ROWS},
        **changes,
    }


@dataclass
class StackJob:
    """One job. Whatever is asked is read anew: from Airflow, from the cluster, from the store."""

    stack: ClusterStack
    name: str
    file: dict[str, Any]
    runs: list[str] = field(default_factory=list)
    before: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.before = self.stack.scheduled()

    def trigger(self) -> None:
        """Start it, or go on with it: the same job file is the same job."""
        self.runs.append(self.stack.airflow.trigger(JOBS, {"job": self.file}))

    @property
    def run(self) -> str:
        return self.runs[-1]

    @cached_property
    def plan(self) -> Plan:
        until("plan", lambda: self._job_id() is not None, 300)
        return read_plan(self.stack.store, str(self._job_id()))

    def _job_id(self) -> Any:
        return self.stack.airflow.api.xcom(JOBS, self.runs[0], "plan_job", "job_id")

    @cached_property
    def shards(self) -> list[str]:
        return [entry.shard for entry in read_shards(self.stack.store, self.plan)]

    def wave(self, generation: int = 1) -> str:
        return f"{self.plan.job_id}-w0-g{generation}"

    def tasks(self, generation: int = 1) -> list[dict[str, Any]]:
        """The shards' task instances of a wave, by number."""
        found = self.stack.airflow.api.task_instances(WAVES, self.wave(generation))
        shards = [task for task in found if task["task_id"] == "infer_shard"]
        return sorted(shards, key=lambda task: task["map_index"])

    def log(self, number: int, attempt: int, generation: int = 1) -> str:
        """The log of one try of a shard's task."""
        return self.stack.airflow.api.log(
            WAVES, self.wave(generation), "infer_shard", number, attempt
        )

    def clear(self, dag_id: str, run_id: str, tasks: Sequence[Any]) -> None:
        """What the button Clear asks for, with downstream as it is set by default."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": list(tasks),
            "only_failed": False,
            "include_downstream": True,
            "include_upstream": False,
            "include_future": False,
            "include_past": False,
        }
        self.stack.airflow.api.request("POST", f"dags/{dag_id}/clearTaskInstances", json=body)

    def pods(self) -> list[V1Pod]:
        selector = f"{JOB}={label_value(self.plan.job_id)}"
        found = self.stack.core.list_namespaced_pod(
            self.stack.namespace, label_selector=selector
        ).items
        return sorted(found, key=lambda pod: str(pod.metadata.name))

    def uids(self) -> set[str]:
        return {pod.metadata.uid for pod in self.pods()}

    def wait_cut(self) -> None:
        """Until it has shards."""
        until("manifest", lambda: self.stack.store.exists(self.plan.layout.manifest), 300)

    def wait_working(self, generation: int = 1) -> None:
        """Until every task has deferred and every pod of this generation has committed rows."""
        self.wait_cut()

        def is_working() -> bool:
            last = [shard[-1] for shard in self.attempts() if shard]
            busy = [a for a in last if a.generation == generation and self._has_segment(a)]
            return len(busy) == len(self.shards)

        until("segments", is_working, 300)
        states = {"deferred"}
        until("deferrals", lambda: {t["state"] for t in self.tasks(generation)} == states, 300)

    def _has_segment(self, attempt: Attempt) -> bool:
        found = self.stack.store.list(self.plan.layout.segments(attempt.shard))
        return any(SegmentName.parse(segment.path).attempt == attempt.attempt for segment in found)

    def hurry(self) -> None:
        """Let later pods be quick: engine arguments are no part of what the job is."""
        self.file["gpu"]["engine_args"]["latency_s"] = 0.0
        job = self.plan.job_file
        assert job.gpu is not None
        quick = job.model_copy(
            update={"gpu": job.gpu.model_copy(update={"engine_args": {"max_num_seqs": SLOTS}})}
        )
        keep_settings(self.stack.store, self.plan, quick, self.plan.worker_image)

    def triggerers(self) -> set[int]:
        """Ids of the triggerers that hold the shards' triggers."""
        triggers = [task["trigger"] for task in self.tasks()]
        return {trigger["triggerer_id"] for trigger in triggers if trigger}

    def mark_failed(self, generation: int = 1) -> None:
        """By the buttons of the job's run and of its wave."""
        api = self.stack.airflow.api
        api.set_run_state(JOBS, self.run, "failed")
        api.set_run_state(WAVES, self.wave(generation), "failed")

    def wait(self, timeout_s: float = 900) -> str:
        return self.stack.airflow.wait(JOBS, self.run, timeout_s)

    def wait_wave(self, generation: int = 1, timeout_s: float = 600) -> str:
        return self.stack.airflow.wait(WAVES, self.wave(generation), timeout_s)

    def attempts(self) -> list[list[Attempt]]:
        """The records of each shard's attempts, of all generations, oldest first."""
        layout = self.plan.layout
        return [read_attempts(self.stack.store, layout, shard) for shard in self.shards]

    def charged(self, generation: int = 1) -> list[int]:
        """How many attempts each shard was charged."""
        return [
            sum(
                outcome.is_charged
                for outcome in read_history(self.stack.store, self.plan, shard, generation)
            )
            for shard in self.shards
        ]

    def committed(self) -> int:
        """Lines in the segments of all shards."""
        store, layout = self.stack.store, self.plan.layout
        segments = [found for shard in self.shards for found in store.list(layout.segments(shard))]
        return sum(len(store.read(found.path).splitlines()) for found in segments)

    def assert_whole(self) -> None:
        """No row lost or doubled, no pod left, and no pod that has no attempt of its own."""
        verified = verify_job(self.stack.store, self.plan)
        assert verified.holds, verified.differences
        assert verified.published_rows == verified.law.results
        assert not self.pods()
        told = [attempt.pod_uid for shard in self.attempts() for attempt in shard]
        assert len(told) == len(set(told))
        assert self.stack.scheduled() - self.before == set(told)


def family(pid: int | None) -> list[psutil.Process]:
    """A process and all that it has started."""
    assert pid is not None, "it does not run"
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@contextmanager
def stopped(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Stand still, as on a machine that is paused or swaps."""
    try:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


def cluster_program(name: str) -> psutil.Process:
    """One of the cluster's own programs. Raises KeyError on a cluster that does not show them."""
    return psutil.Process(int((Path(os.environ["CLUSTER_STATE"]) / f"{name}.pid").read_text()))
