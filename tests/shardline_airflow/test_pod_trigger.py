"""Waiting for a pod: what a triggerer that moves, stalls or is killed does to it, and an API that fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.api.datamodels._generated import TaskInstanceState
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import TaskStatesResult

from shardline.errors import StoreUnavailable
from shardline.runners.gpu.outcomes import Patience
from shardline_airflow.pod_api import PodApi
from shardline_airflow.pod_trigger import _ENDING, ShardPodTrigger
from tests.kubernetes_api import FakeKubernetes, FakePod, fake_kubernetes
from tests.shardline_airflow.pod_tasks import Ti


@pytest.fixture(scope="module")
def server() -> Iterator[FakeKubernetes]:
    with fake_kubernetes() as server:
        yield server


@pytest.fixture
def pod(server: FakeKubernetes) -> Iterator[FakePod]:
    body = {
        "metadata": {
            "name": "pod-1",
            "uid": "uid-1",
            "labels": {},
            "finalizers": ["shardline/keep"],
        },
        "spec": {"containers": [{"name": "base", "env": []}]},
        "status": {"phase": "Pending"},
    }
    server.pods["pod-1"] = pod = FakePod(body, server)
    pod.run()
    yield pod
    server.pods.clear()
    server.faults.clear()


@pytest.fixture
def trigger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FakeKubernetes
) -> ShardPodTrigger:
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", server.connection())
    monkeypatch.setenv("SHARDLINE_ROOT", str(tmp_path / "root"))
    return ShardPodTrigger(
        pod_name="pod-1",
        pod_namespace="shardline",
        trigger_start_time=datetime.now(UTC),
        base_container_name="base",
        kubernetes_conn_id="kubernetes_default",
        poll_interval=0.01,
        progress="jobs/j/progress/s~a.json",
        cancel="jobs/j/cancel/1",
        attempt="a",
        uid="uid-1",
        patience=vars(Patience()),
    )


def ask(trigger: ShardPodTrigger, state: TaskInstanceState | Exception) -> None:
    """Let Airflow say this of the task."""

    async def get_task_state() -> Any:
        if isinstance(state, Exception):
            raise state
        return state

    trigger.get_task_state = get_task_state
    asyncio.run(trigger.on_kill())


def test_a_trigger_that_was_moved_keeps_its_pod(trigger: ShardPodTrigger, pod: FakePod) -> None:
    ask(trigger, TaskInstanceState.DEFERRED)
    assert pod.api.pods


def test_a_trigger_that_cannot_ask_keeps_its_pod(trigger: ShardPodTrigger, pod: FakePod) -> None:
    ask(trigger, OSError("the api-server is away"))
    assert pod.api.pods


def test_a_task_that_was_deleted_with_its_run_leaves_no_pod(
    trigger: ShardPodTrigger, pod: FakePod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No `reap_pods` will come: it was deleted, too."""
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", NoSuchTask(), raising=False)
    trigger.task_instance = Ti(map_index=3)
    asyncio.run(trigger.on_kill())
    assert not pod.api.pods


def test_a_task_ended_by_a_person_leaves_no_pod(trigger: ShardPodTrigger, pod: FakePod) -> None:
    ask(trigger, TaskInstanceState.FAILED)
    assert not pod.api.pods


@pytest.mark.parametrize(("code", "method"), [(500, "DELETE"), (0, "DELETE"), (429, "PATCH")])
def test_a_task_ended_by_a_person_leaves_no_pod_when_the_api_is_away_for_a_moment(
    trigger: ShardPodTrigger,
    pod: FakePod,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    method: str,
) -> None:
    monkeypatch.setattr("shardline_airflow.pod_trigger._REMOVE_AGAIN_S", (0.0,) * 5)
    pod.api.fail(code, n=3, method=method)
    ask(trigger, TaskInstanceState.FAILED)
    assert not pod.api.pods


def test_a_trigger_that_is_cancelled_again_while_it_ends_leaves_no_pod(
    trigger: ShardPodTrigger, pod: FakePod
) -> None:
    async def cancel_twice() -> None:
        asked, answered = asyncio.Event(), asyncio.Event()

        async def get_task_state() -> Any:
            asked.set()
            await answered.wait()
            return TaskInstanceState.FAILED

        trigger.get_task_state = get_task_state
        killing = asyncio.ensure_future(trigger.on_kill())
        await asked.wait()
        killing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await killing
        answered.set()
        await asyncio.gather(*_ENDING)

    asyncio.run(cancel_twice())
    assert not pod.api.pods


def test_a_pod_that_is_gone_already_hinders_nothing(trigger: ShardPodTrigger, pod: FakePod) -> None:
    pod.vanish()
    ask(trigger, TaskInstanceState.FAILED)


def test_another_pod_of_the_same_name_is_neither_watched_nor_deleted(
    trigger: ShardPodTrigger, pod: FakePod
) -> None:
    pod.object["metadata"]["uid"] = "uid-2"
    assert asyncio.run(first(trigger))["stop"] == "gone"
    trigger._fired_event = False
    ask(trigger, TaskInstanceState.FAILED)
    assert pod.object["metadata"]["finalizers"]
    assert "deletionTimestamp" not in pod.object["metadata"]


def test_a_trigger_that_has_fired_deletes_nothing(trigger: ShardPodTrigger, pod: FakePod) -> None:
    pod.end(0)
    event = asyncio.run(first(trigger))
    assert event["facts"]["exit_code"] == 0
    ask(trigger, TaskInstanceState.FAILED)
    assert pod.api.pods


@pytest.mark.parametrize("code", [0, 401, 429, 500])
def test_an_api_that_fails_is_asked_again_and_the_pod_lives_on(
    trigger: ShardPodTrigger, pod: FakePod, code: int
) -> None:
    pod.api.fail(code, n=5)
    pod.api.looks = 0
    pod.api.on_look = lambda looks: pod.end(75) if looks == 2 else None
    event = asyncio.run(first(trigger))
    assert (event["stop"], event["facts"]["exit_code"]) == ("ended", 75)


def test_what_was_seen_last_of_a_pod_that_goes_is_told(
    trigger: ShardPodTrigger, pod: FakePod
) -> None:
    pod.api.looks = 0
    pod.api.on_look = lambda looks: pod.vanish() if looks == 2 else None
    event = asyncio.run(first(trigger))
    assert event["stop"] == "gone"
    assert event["facts"]["started_at"] is not None


def test_an_api_that_says_nothing_for_good_is_left_to_the_task(
    trigger: ShardPodTrigger, pod: FakePod
) -> None:
    pod.api.fail(403, n=10_000)
    trigger.patience["api_s"] = 0.05
    assert asyncio.run(first(trigger))["stop"] == "lost"
    assert pod.name in pod.api.pods


def test_a_store_that_hangs_hides_no_end_of_a_pod(
    trigger: ShardPodTrigger, pod: FakePod, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()

    def hang(_: object) -> None:
        answers.wait(60)
        raise StoreUnavailable("no answer")

    monkeypatch.setattr("shardline_airflow.pod_trigger.open_root", hang)
    trigger.patience["stale_s"] = 0.0  # whoever is not heard would be given up
    pod.api.looks = 0

    def on_look(looks: int) -> None:
        if looks == 5:
            pod.end(75)
            answers.set()

    pod.api.on_look = on_look
    event = asyncio.run(first(trigger))
    assert (event["stop"], event["facts"]["exit_code"]) == ("ended", 75)


def test_a_call_is_repeated_for_longer_than_a_control_plane_restarts(
    server: FakeKubernetes, pod: FakePod
) -> None:
    from kubernetes import client

    waited: list[float] = []
    configuration = client.Configuration(host=f"http://127.0.0.1:{server.port}")
    api = PodApi(
        client.CoreV1Api(client.ApiClient(configuration)), "shardline", pause=waited.append
    )
    server.fail(500, n=9)
    assert api.read("pod-1") is not None
    assert sum(waited) > 60


class NoSuchTask:
    """What the supervisor answers when nobody knows the task any more."""

    def send(self, msg: Any) -> TaskStatesResult:
        return TaskStatesResult(task_states={})


async def first(trigger: ShardPodTrigger) -> dict[str, Any]:
    events = trigger.run()
    try:
        return dict((await anext(events)).payload)
    finally:
        await events.aclose()
