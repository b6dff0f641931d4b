"""What Airflow's KubernetesPodOperator does on a real cluster.

Not tests of ours: they hold the operator's behaviour that ours builds on, and fail when a new
provider or Kubernetes changes it. An operator is run as the task runner and the triggerer would run
it, without either.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.cncf.kubernetes.utils.pod_manager import PodLaunchTimeoutException
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, TaskDeferred
from kubernetes import client

from tests.cluster.ground import GPU, Ground
from tests.cluster.pods import Pod, disruption, end_of, exit_code
from tests.waits import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BOTH = pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
KEEP = "example.com/keep"
numbers = itertools.count()


@dataclass
class TaskInstance:
    """The few things the operator asks of a task instance."""

    task_id: str
    dag_id: str = "test"
    run_id: str = "run"
    map_index: int = -1
    try_number: int = 1
    start_date: datetime = field(default_factory=lambda: datetime.now(UTC))
    xcom: dict[str, object] = field(default_factory=dict)

    def xcom_push(self, key: str, value: object) -> None:
        self.xcom[key] = value


@dataclass
class Task:
    """An operator on its own."""

    operator: KubernetesPodOperator
    api: client.CoreV1Api
    ti: TaskInstance

    @property
    def context(self) -> dict[str, object]:
        operator = self.operator
        return {"ti": self.ti, "run_id": self.ti.run_id, "task": operator, "dag": operator.dag}

    def run(self) -> object:
        try:
            return self.operator.execute(self.context)
        except TaskDeferred as deferral:
            event = asyncio.run(anext(deferral.trigger.run()))
            return getattr(self.operator, deferral.method_name)(self.context, event=event.payload)

    def pods(self) -> list[client.V1Pod]:
        return self.api.list_namespaced_pod(**self._selection).items

    def pod(self) -> client.V1Pod:
        [pod] = self.pods()
        return pod

    def wait_ready(self) -> Pod:
        """Until its script has said so: before its trap is set, SIGTERM is nothing to it."""
        until("pod", lambda: bool(self.pods()))
        pod = Pod(self.api, self.pod().metadata.name, self.operator.namespace)
        pod.wait_running()
        pod.read_until("ready")
        return pod

    def remove(self) -> None:
        for pod in self.pods():
            place = (pod.metadata.name, pod.metadata.namespace)
            with contextlib.suppress(client.ApiException):  # it may go by itself meanwhile
                self.api.patch_namespaced_pod(*place, {"metadata": {"finalizers": None}})
                self.api.delete_namespaced_pod(*place, grace_period_seconds=0)

    @property
    def _selection(self) -> dict[str, str]:
        selector = f"task_id={self.ti.task_id}"
        return {"namespace": self.operator.namespace, "label_selector": selector}


@pytest.fixture
def make_task(
    ground: Ground, api: client.CoreV1Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Task]]:
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps({"conn_type": "kubernetes"}))
    made: list[Task] = []

    def make(script: str, **options: Any) -> Task:
        task_id = f"task-{next(numbers)}"
        defaults = {
            "image": ground.image,
            "image_pull_policy": "IfNotPresent",
            "namespace": namespace,
            "in_cluster": False,
            "config_file": ground.kubeconfig,
            "startup_check_interval_seconds": 1,
            "poll_interval": 1,
            "on_finish_action": "keep_pod",
        }
        with DAG("test", schedule=None):
            operator = KubernetesPodOperator(
                task_id=task_id, name=task_id, cmds=["sh", "-c", script], **defaults | options
            )
        made.append(Task(operator, api, TaskInstance(task_id)))
        return made[-1]

    yield make
    for task in made:
        task.remove()


@pytest.fixture
def start() -> Iterator[Callable[[Task], Future[object]]]:
    """Run a task in the background; its result or exception is the future's."""
    with ThreadPoolExecutor() as threads:
        yield lambda task: threads.submit(task.run)


@BOTH
def test_the_exit_code_is_in_the_pod_and_not_in_the_exception(
    make_task: Callable[..., Task], deferrable: bool
) -> None:
    task = make_task("echo why > /dev/termination-log; exit 75", deferrable=deferrable)
    with pytest.raises(AirflowException, match="why") as failure:
        task.run()
    assert type(failure.value) is AirflowException
    assert exit_code(task.pod()) == 75
    assert disruption(task.pod()) is None


@BOTH
def test_a_memory_limit_shows_as_oomkilled(
    make_task: Callable[..., Task], deferrable: bool
) -> None:
    limits = client.V1ResourceRequirements(limits={"memory": "32Mi"})
    # containerd looks for it from the start on, but not from before
    task = make_task(
        "sleep 2; exec tail /dev/zero", deferrable=deferrable, container_resources=limits
    )
    with pytest.raises(AirflowException):
        task.run()
    assert (end_of(task.pod()).reason, exit_code(task.pod())) == ("OOMKilled", 137)


def test_a_pod_without_a_gpu_is_given_up_after_the_schedule_timeout(
    make_task: Callable[..., Task],
) -> None:
    limits = client.V1ResourceRequirements(limits={GPU: "999"})
    task = make_task("true", schedule_timeout_seconds=3, container_resources=limits)
    with pytest.raises(AirflowException) as failure:
        task.run()
    assert isinstance(failure.value.__context__, PodLaunchTimeoutException)
    until("word of the scheduler", lambda: bool(task.pod().status.conditions))
    assert task.pod().status.conditions[0].reason == "Unschedulable"


@BOTH
def test_a_finalizer_keeps_an_evicted_pod_readable(
    make_task: Callable[..., Task],
    start: Callable[[Task], Future[object]],
    deferrable: bool,
) -> None:
    """Without it the pod is gone within a second of its end, and a poll mostly comes too late."""
    kept = client.V1Pod(metadata=client.V1ObjectMeta(finalizers=[KEEP]))
    script = "trap 'sleep 3; exit 75' TERM; echo ready; while true; do sleep 0.2; done"
    task = make_task(script, deferrable=deferrable, full_pod_spec=kept)
    future = start(task)
    task.wait_ready().evict()
    with pytest.raises(AirflowException):
        future.result(timeout=240)
    assert exit_code(task.pod()) == 75
    assert disruption(task.pod()) == "EvictionByEvictionAPI"


def test_kill_deletes_the_pod(
    make_task: Callable[..., Task], start: Callable[[Task], Future[object]]
) -> None:
    task = make_task("trap 'exit 0' TERM; echo ready; while true; do sleep 0.2; done")
    future = start(task)
    task.wait_ready()
    task.operator.on_kill()
    with contextlib.suppress(client.ApiException):  # `execute` returns None or finds the pod gone
        future.result(timeout=240)
    assert all(pod.metadata.deletion_timestamp for pod in task.pods())


def test_a_second_attempt_takes_over_the_first_one_s_pod(
    make_task: Callable[..., Task], api: client.CoreV1Api
) -> None:
    task = make_task("sleep 15")  # one that has ended is not taken over
    first = task.operator.build_pod_request_obj(task.context)
    api.create_namespaced_pod(first.metadata.namespace, first)
    task.ti.try_number = 2
    task.run()
    assert task.pod().metadata.name == first.metadata.name
