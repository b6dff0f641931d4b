"""The checkpoint: ended rows gathered into segments and put while generation goes on.

A row is done when a committed segment holds it. A segment is cut by age, rows or size, whichever
comes first, and at the end; one put at a time, so that their numbers are in order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from shardline.engines.answers import encode_line
from shardline.layout import JobLayout
from shardline.rows import Attempt, Result
from shardline.store import Store
from shardline.worker.patience import Patience
from shardline.worker.settings import WorkerSettings

_TICK_S = 0.2


@dataclass
class Buffer:
    """Ended rows that no segment holds yet."""

    began: float
    rows: list[int] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    dead: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, row: int, result: Result) -> None:
        line = encode_line(result)
        self.rows.append(row)
        self.lines.append(line)
        self.size_bytes += len(line)
        self.dead += result.is_dead
        if result.response:
            usage = result.response.body["usage"]
            self.prompt_tokens += usage["prompt_tokens"]
            self.completion_tokens += usage["completion_tokens"]


@dataclass(frozen=True)
class Committed:
    """One segment that is in the store now."""

    n: int
    buffer: Buffer
    elapsed_s: float


class Commits:
    """Cuts segments and puts them; `on_commit` is told of each that is in the store."""

    def __init__(
        self,
        store: Store,
        layout: JobLayout,
        attempt: Attempt,
        patience: Patience,
        settings: WorkerSettings,
        on_commit: Callable[[Committed], Awaitable[None]],
    ) -> None:
        self._store, self._layout, self._attempt = store, layout, attempt
        self._patience, self._settings, self._on_commit = patience, settings, on_commit
        self._buffer = Buffer(time.monotonic())
        self._last_cut = time.monotonic()
        self._lock = asyncio.Lock()
        self.is_held = False
        """True while it is not clear whether the first rows' ends are to be kept at all."""

    @property
    def has_room(self) -> bool:
        """False when the store takes segments more slowly than rows end: feeding pauses."""
        return self.is_held or (
            len(self._buffer.rows) < 2 * self._settings.segment_rows
            and self._buffer.size_bytes < 2 * self._settings.segment_bytes
        )

    def add(self, row: int, result: Result) -> None:
        if not self._buffer.rows:
            self._buffer.began = time.monotonic()
        self._buffer.add(row, result)

    async def keep_committing(self, until: asyncio.Event) -> None:
        """Cut and put whenever a segment is due. Never cancelled: a cut segment must be put."""
        while not until.is_set():
            if self._is_due and not self.is_held:
                await self.flush()
            with suppress(TimeoutError):
                await asyncio.wait_for(until.wait(), min(_TICK_S, self._settings.segment_s))

    @property
    def _is_due(self) -> bool:
        buffer, settings = self._buffer, self._settings
        return bool(buffer.rows) and (
            time.monotonic() - buffer.began >= settings.segment_s
            or len(buffer.rows) >= settings.segment_rows
            or buffer.size_bytes >= settings.segment_bytes
        )

    async def flush(self) -> None:
        """Commit what has ended. Raises StoreUnavailable when the store's patience is over."""
        async with self._lock:
            if not self._buffer.rows:
                return
            buffer, self._buffer = self._buffer, Buffer(time.monotonic())
            counts, moment = self._attempt.counts, time.monotonic()
            n = counts.segments
            path = self._layout.segment(self._attempt.shard, self._attempt.attempt, n)
            await self._patience.call(self._store.put_same, path, b"".join(buffer.lines))
            counts.segments += 1
            counts.segment_bytes += buffer.size_bytes
            counts.results += len(buffer.rows) - buffer.dead
            counts.dead += buffer.dead
            counts.prompt_tokens += buffer.prompt_tokens
            counts.completion_tokens += buffer.completion_tokens
            elapsed, self._last_cut = moment - self._last_cut, moment
            await self._on_commit(Committed(n, buffer, max(elapsed, 1e-9)))
