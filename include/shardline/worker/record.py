"""An attempt's record in the store: what it has fed, whom it suspects, how it ended.

Rows stand in it before they reach the engine, so that whoever comes after a worker that vanished
knows what was in flight (PROTOCOL 9). One writer; writes are serialised, so that a slow older one
can never land on top of a newer one.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from shardline.layout import JobLayout
from shardline.plan import timestamp
from shardline.reasons import AttemptEnd, ExitCode
from shardline.rows import Attempt
from shardline.store import Store
from shardline.worker.patience import Patience
from shardline.worker.settings import WorkerSettings


def now() -> str:
    return timestamp(datetime.now(UTC))


def new_attempt(attempt: str, shard: str, generation: int, settings: WorkerSettings) -> Attempt:
    """The record of an attempt that has done nothing yet."""
    return Attempt(
        attempt=attempt,
        shard=shard,
        generation=generation,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_at=now(),
        pod_uid=settings.pod_uid,
        node=settings.node,
    )


class Record:
    """The one writer of an attempt's record."""

    def __init__(
        self, store: Store, layout: JobLayout, attempt: Attempt, patience: Patience
    ) -> None:
        self.attempt = attempt
        self._store, self._patience = store, patience
        self._path = layout.attempt(attempt.shard, attempt.attempt)
        self._fed: set[int] = set()
        self._lock = asyncio.Lock()

    async def save(self) -> None:
        async with self._lock:
            content = msgspec.json.format(msgspec.json.encode(self.attempt), indent=1)
            await self._patience.call(self._store.write, self._path, content)

    async def reserve(self, rows: Sequence[int]) -> None:
        """Write down that these rows are about to be fed."""
        self._fed.update(rows)
        self.attempt.fed = as_ranges(self._fed)
        await self.save()

    async def set_apart(self, rows: Sequence[int]) -> None:
        """Write down a group that is about to be fed alone."""
        self.attempt.suspects.append(list(rows))
        await self.save()

    async def end(self, how: AttemptEnd, code: ExitCode, message: str) -> None:
        self.attempt.end, self.attempt.exit_code, self.attempt.message = how, int(code), message
        self.attempt.ended_at = now()
        await self.save()


def as_ranges(rows: Iterable[int]) -> list[tuple[int, int]]:
    """Closed ranges that hold exactly these row numbers."""
    ranges: list[tuple[int, int]] = []
    for row in sorted(set(rows)):
        if ranges and ranges[-1][1] == row - 1:
            ranges[-1] = (ranges[-1][0], row)
        else:
            ranges.append((row, row))
    return ranges
