"""An attempt inside the test's own process, and a store whose faults are scripted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from uuid6 import uuid7

from shardline.attempts import new_attempt
from shardline.reasons import ExitCode
from shardline.store import Store, open_store
from shardline.worker.run import infer_shard
from shardline.worker.stop import Stop
from shardline.worker_settings import WorkerSettings
from tests.worker.prepared import SHARD, Prepared


def attempt(
    prepared: Prepared,
    folder: Path,
    *,
    shard: str = SHARD,
    store: Store | None = None,
    generation: int = 1,
    stop_when: Callable[[Prepared], bool] | None = None,
    **settings: Any,
) -> ExitCode:
    """Run one attempt to its end."""
    small = {"segment_s": 0.02, "segment_rows": 7, "stall_s": 0.5, "store_patience_s": 0.5}
    chosen = WorkerSettings(**{**small, **settings})
    scratch = folder / f"scratch-{uuid7()}"
    scratch.mkdir()
    record = new_attempt(str(uuid7()), shard, generation, pod_uid=chosen.pod_uid, node=chosen.node)

    async def run() -> ExitCode:
        stop = Stop()
        watch = asyncio.create_task(_stop_when(stop, prepared, stop_when))
        try:
            return await infer_shard(
                store or prepared.store, prepared.plan.job_id, record, scratch, chosen, stop
            )
        finally:
            watch.cancel()

    return asyncio.run(run())


async def _stop_when(
    stop: Stop, prepared: Prepared, when: Callable[[Prepared], bool] | None
) -> None:
    while when and not when(prepared):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    if when:
        stop.on_signal()


class ProcessDied(Exception):
    """The process is gone: neither this call nor any later one reaches the store."""


class FaultyStore(Store):
    """The store of a folder; `fault(number, path)` is asked before and after each write.

    It is called with the write's number from 0, its path, and "before" or "after"; what it raises
    comes out of the store. Raised "after", the object is written and the reply is lost.
    """

    def __init__(self, root: str, fault: Callable[[int, str, str], None]) -> None:
        plain = open_store(root)
        super().__init__(plain.uri, plain._objects, plain.folder)
        self._fault = fault
        self.paths: list[str] = []

    def _do_create(self, path: str, content: bytes | Path) -> bool:
        number = self._begin(path)
        created = super()._do_create(path, content)
        self._fault(number, path, "after")
        return created

    def _do_write(self, path: str, content: bytes | Path) -> None:
        number = self._begin(path)
        super()._do_write(path, content)
        self._fault(number, path, "after")

    def _begin(self, path: str) -> int:
        number = len(self.paths)
        self.paths.append(path)
        self._fault(number, path, "before")
        return number


def die_at(number: int, when: str) -> Callable[[int, str, str], None]:
    """The process dies at its write number `number`, before or after it lands."""

    def fault(n: int, path: str, moment: str) -> None:
        if n > number or (n == number and moment == when):
            raise ProcessDied(path)

    return fault


def slow(delay_s: float) -> Callable[[int, str, str], None]:
    """Every write takes a while."""

    def fault(n: int, path: str, moment: str) -> None:
        if moment == "before":
            time.sleep(delay_s)

    return fault
