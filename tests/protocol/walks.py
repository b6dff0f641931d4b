"""What the walks of the protocol need: attempts of real code, over stores that die at a chosen moment.

An attempt here is the worker's own `infer_shard`, in this process or in a thread beside others. A
process that dies is a store that answers nobody any more: whatever it would have written is lost.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from uuid6 import uuid7

from shardline.attempts import new_attempt
from shardline.engines.base import Answer, EngineDied
from shardline.engines.stub import StubEngine
from shardline.plan import Plan
from shardline.reasons import ExitCode
from shardline.store import ObjectInfo, Store, open_store
from shardline.worker.run import infer_shard
from shardline.worker.stop import Stop
from shardline.worker_settings import WorkerSettings
from tests.worker.in_process import ProcessDied

T = TypeVar("T")
OnRequest = Callable[[str, str], None]
"""Called with the custom_id of a request and its text."""

SMALL = {
    "segment_s": 0.01,
    "segment_rows": 3,
    "stall_s": 20,
    "store_patience_s": 60,
    "group_size": 4,
}


class MortalStore(Store):
    """The store as one process sees it; the process may die before or after its n-th operation.

    `on` is called with each operation's number, name and path, before it is done.
    """

    def __init__(
        self,
        root: str,
        die_at: int | None = None,
        moment: str = "before",
        on: Callable[[int, str, str], None] = lambda n, name, path: None,
    ) -> None:
        plain = open_store(root)
        super().__init__(plain.uri, plain._objects, plain.folder)
        self.is_dead = False
        self.written: list[str] = []
        self._die_at, self._moment, self._on = die_at, moment, on
        self._count = 0
        self._lock = threading.Lock()

    def die(self) -> None:
        self.is_dead = True

    def _step(self, name: str, path: str, work: Callable[[], T]) -> T:
        with self._lock:
            number, self._count = self._count, self._count + 1
        is_last = number == self._die_at
        if is_last and self._moment == "before":
            self.die()
        self._check(path)
        self._on(number, name, path)
        try:
            done = work()
        finally:
            if is_last:
                self.die()
        self._check(path)
        return done

    def _check(self, path: str) -> None:
        if self.is_dead:
            raise ProcessDied(path)

    def _do_create(self, path: str, content: bytes | Path) -> bool:
        self.written.append(path)
        return self._step("create", path, lambda: Store._do_create(self, path, content))

    def _do_write(self, path: str, content: bytes | Path) -> None:
        self.written.append(path)
        self._step("write", path, lambda: Store._do_write(self, path, content))

    def _do_read(self, path: str) -> bytes:
        return self._step("read", path, lambda: Store._do_read(self, path))

    def _do_head(self, path: str) -> ObjectInfo:
        return self._step("head", path, lambda: Store._do_head(self, path))

    def _do_list(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        listed = self._step("list", prefix, lambda: list(Store._do_list(self, prefix, start_after)))
        return iter(listed)


def run_attempt(
    store: Store,
    plan: Plan,
    shard: str,
    folder: Path,
    *,
    generation: int = 1,
    attempt: str | None = None,
    stop: Stop | None = None,
    **settings: Any,
) -> ExitCode:
    """One attempt to its end. Raises ProcessDied when its process died."""
    scratch = folder / f"scratch-{uuid7()}"
    scratch.mkdir(parents=True)
    chosen = WorkerSettings(**{**SMALL, **settings})
    record = new_attempt(attempt or str(uuid7()), shard, generation, pod_uid=chosen.pod_uid)

    async def run() -> ExitCode:
        return await infer_shard(store, plan.job_id, record, scratch, chosen, stop or Stop())

    return asyncio.run(run())


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Run all at the same time; what each returned, or the ProcessDied that it ended by."""
    start = threading.Barrier(len(works))

    def run(work: Callable[[], Any]) -> Any:
        start.wait()
        try:
            return work()
        except ProcessDied as death:
            return death

    with ThreadPoolExecutor(len(works)) as threads:
        return list(threads.map(run, works))


class WatchedEngine(StubEngine):
    """The stub, with somebody who looks at each request that reaches it.

    `[stub:kill]` ends the process by its store, since a signal would end the test.
    """

    def __init__(
        self,
        engine_args: dict[str, Any],
        on_request: OnRequest = lambda custom_id, text: None,
        kill: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(engine_args)
        self._on_request, self._kill = on_request, kill

    async def generate(self, custom_id: str, prepared: Any) -> Answer:
        self._on_request(custom_id, prepared.body["messages"][-1]["content"])
        if self._kill and "kill" in prepared.markers:
            self._kill()
            raise EngineDied("the process is gone")
        return await super().generate(custom_id, prepared)


def watch_engine(
    monkeypatch: pytest.MonkeyPatch,
    on_request: OnRequest = lambda custom_id, text: None,
    kill: Callable[[], None] | None = None,
) -> None:
    """Let the attempts that follow run on a WatchedEngine."""

    def maker(plan: Plan, slots: int | None) -> Callable[[], WatchedEngine]:
        return lambda: WatchedEngine(plan.job_file.engine.engine_args, on_request, kill)

    monkeypatch.setattr("shardline.worker.drive.engine_maker", maker)
