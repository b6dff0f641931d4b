"""Wait for a pod in the triggerer, and stop when there is nothing to wait for.

How it works: it looks at the pod every `poll_interval` and lets `runners.gpu.outcomes.look` decide.
Between looks it tells how far the worker is, from the progress object in the store. It never reads the
pod's log: a log that is followed hangs with its node.

What Airflow's own trigger does otherwise: it waits for ever for a pod on a lost node, and a triggerer
that stood still and comes back deletes the live pods of the triggers that were moved meanwhile.

Known limitation: whether a task was killed or its trigger was moved is asked when it happens. If that
question cannot be answered the pod is kept; `reap_pods` finds it.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from airflow.providers.cncf.kubernetes.triggers.pod import KubernetesPodTrigger
from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import TriggerEvent

from shardline.attempts import read_progress
from shardline.runners.gpu.facts import PodFacts, read_facts
from shardline.runners.gpu.outcomes import Patience, Stop, look
from shardline.settings import Settings
from shardline.store import Store
from shardline_airflow.buckets import open_root
from shardline_airflow.pod_api import moment_of, removal
from shardline_airflow.pod_client import shared_client

_HEARD_S = 60.0
_STORE_S = 600.0
"""The store is opened anew so often: the keys of its connection may have changed."""

_REMOVE_AGAIN_S = (0.0, 2.0, 8.0, 20.0, 40.0)
"""For a minute: Airflow waits two for the end of a trigger."""

_ENDING: set[asyncio.Future[None]] = set()
"""Pods that are being deleted: the loop itself keeps weak references only."""


class _NoAnswer(Exception):
    """The API answered, and does not say how the pod is."""


class ShardPodTrigger(KubernetesPodTrigger):
    """Fires once, with why it stopped and the last it saw of the pod."""

    def __init__(
        self,
        *,
        progress: str,
        cancel: str,
        attempt: str,
        uid: str,
        patience: dict[str, float],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.progress, self.cancel, self.attempt, self.uid = progress, cancel, attempt, uid
        self.patience = patience
        self._told: tuple[int, str] | None = None
        self._is_cancelled = False
        self._hearing: asyncio.Future[datetime | None] | None = None
        self._asked_at = 0.0
        self._now = datetime.now(UTC)
        """The API's clock, which pods are dated by."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("progress", "cancel", "attempt", "uid", "patience")
        own = {name: getattr(self, name) for name in names}
        return f"{type(self).__module__}.{type(self).__qualname__}", super().serialize()[1] | own

    async def run(self) -> AsyncIterator[TriggerEvent]:
        patience, last, said_at = Patience(**self.patience), None, time.monotonic()
        async with shared_client(self.kubernetes_conn_id).hold():
            while True:
                pod = await self._look()
                facts = read_facts(pod) if pod else None
                if facts:
                    self._listen(facts.is_running)
                stop = None
                if pod is not None:
                    said_at = time.monotonic()
                    stop = look(facts, self._now, self._heard_at(), patience)
                elif time.monotonic() - said_at > patience.api_s:
                    stop = Stop.LOST
                if stop is None and facts and self._is_cancelled and not facts.is_running:
                    stop = Stop.CANCELLED
                last = facts or last
                if stop is not None:
                    self._fired_event = True
                    yield TriggerEvent(self._event(stop, last))
                    return
                await asyncio.sleep(self.poll_interval)

    def _event(self, stop: Stop, last: PodFacts | None) -> dict[str, Any]:
        return {
            "name": self.pod_name,
            "attempt": self.attempt,
            "stop": stop.value,
            "facts": msgspec.to_builtins(last),
        }

    async def _look(self) -> Mapping[str, Any] | None:
        """The pod; {} when there is none; None when the API does not say."""
        from kubernetes_asyncio.client import CoreV1Api

        try:
            async with shared_client(self.kubernetes_conn_id).use(self.hook.get_conn) as client:
                answer = await CoreV1Api(client).read_namespaced_pod(
                    self.pod_name, self.pod_namespace, _preload_content=False
                )
                async with answer:
                    self._now = moment_of(answer.headers)
                    if answer.status == 404:
                        return {}
                    if answer.status == 200:
                        pod = dict(await answer.json())
                        return pod if pod["metadata"]["uid"] == self.uid else {}
                    raise _NoAnswer(str(answer.status))
        # whatever keeps us from looking (network, TLS, an expired login), the pod lives on: look again
        except Exception as error:  # noqa: BLE001
            why = f"{type(error).__name__}: {error}"
        self.log.warning("pod %s: the Kubernetes API does not say (%s)", self.pod_name, why)
        return None

    def _listen(self, is_running: bool) -> None:
        """Ask the store once in a while how far the worker is; a store that hangs holds nobody up.

        Before it runs, whether its job was cancelled: nobody else would find it out.
        """
        if self._hearing is None or (
            self._hearing.done() and time.monotonic() - self._asked_at >= _HEARD_S
        ):
            self._asked_at = time.monotonic()
            self._hearing = asyncio.ensure_future(asyncio.to_thread(self._hear, is_running))

    def _heard_at(self) -> datetime | None:
        """When the worker last wrote to the store; now, while the store does not say."""
        if self._hearing is None or not self._hearing.done():
            return self._now
        try:
            return self._hearing.result()
        # a store, a login or an object that cannot be read: a live pod is not given up for it
        except Exception as error:  # noqa: BLE001
            self.log.warning("pod %s: the store does not say (%s)", self.pod_name, error)
            return self._now

    def _hear(self, is_running: bool) -> datetime | None:
        store = _root()
        if not is_running:
            self._is_cancelled = store.exists(self.cancel)
            return None
        said = read_progress(store, self.progress)
        if said is None:
            return None
        if self._told != (said.rows_done, said.state):
            self._told = (said.rows_done, said.state)
            self.log.info(
                "%s: %s, %d of %d rows, %.1f rows/s",
                said.shard,
                said.state,
                said.rows_done,
                said.rows_total,
                said.rows_per_s,
            )
        return datetime.fromisoformat(said.at)

    async def on_kill(self) -> None:
        """Delete the pod when a person ended the task, or deleted it; keep it when its trigger was moved.

        Airflow cancels a trigger again while it still ends, and so would leave the pod: what was begun
        here goes on behind a shield.
        """
        if self._fired_event:
            return
        ending = asyncio.ensure_future(self._end_pod())
        _ENDING.add(ending)
        ending.add_done_callback(_ENDING.discard)
        await asyncio.shield(ending)

    async def _end_pod(self) -> None:
        try:
            may_delete = await self.safe_to_cancel()
        except AirflowException:  # the provider's word for a task that is not there
            self.log.warning("pod %s: its task was deleted, with its run", self.pod_name)
            may_delete = True
        except Exception:  # whatever it is: a live pod is worth more than an orphan costs
            self.log.exception("pod %s kept: its task's state is not known", self.pod_name)
            return
        if not may_delete:
            self.log.warning("pod %s kept: its task still waits for it", self.pod_name)
            return
        await self._remove()

    async def _remove(self) -> None:
        self.log.info("pod %s: deleted, its worker drains", self.pod_name)
        for delay_s in _REMOVE_AGAIN_S:
            await asyncio.sleep(delay_s)
            try:
                why = await self._try_to_remove()
            except Exception as error:  # noqa: BLE001 - as for a look: it may be back in a moment
                why = f"{type(error).__name__}: {error}"
            if not why:
                return
            self.log.warning("pod %s: not removed yet (%s)", self.pod_name, why)
        self.log.error("pod %s: left to reap_pods of a later wave", self.pod_name)

    async def _try_to_remove(self) -> str:
        """Delete the pod and take its finalizer off; why not, if the API said no."""
        from kubernetes_asyncio.client import CoreV1Api

        delete, free = removal(self.uid)
        where, raw = (self.pod_name, self.pod_namespace), {"_preload_content": False}
        async with self.hook.get_conn() as client:
            api = CoreV1Api(client)
            calls: tuple[Callable[[], Any], ...] = (
                lambda: api.delete_namespaced_pod(*where, body=delete, **raw),
                lambda: api.patch_namespaced_pod(*where, free, **raw),
            )
            for call in calls:
                async with await call() as answer:
                    if answer.status not in (200, 202, 404, 409):  # 409: another has its name
                        return str(answer.status)
        return ""


def _root() -> Store:
    """One store for all triggers of the process: to open it takes 7 ms, and asks for its connection."""
    return _open_root(Settings(), int(time.monotonic() / _STORE_S))


@functools.lru_cache(maxsize=1)
def _open_root(settings: Settings, _period: int) -> Store:
    return open_root(settings)
