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

from shardline.early import EarlyEnds
from shardline.engines.answers import encode_line
from shardline.engines.base import Answer, RequestRefused
from shardline.rows import Result
from shardline.worker.desk import Desk

_TICK_S = 0.2


@dataclass
class Segment:
    """What is gathered for a segment; `elapsed_s` once it is in the store."""

    n: int
    began: float
    lines: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    dead: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    elapsed_s: float = 0.0

    @property
    def rows(self) -> int:
        return len(self.lines)


OnCommit = Callable[[Segment], Awaitable[None]]


class Commits:
    """Cuts the segments of one shard and puts them; `on_commit` is told of each in the store."""

    def __init__(self, desk: Desk, shard: str, early: EarlyEnds, on_commit: OnCommit) -> None:
        self._desk, self._shard, self._early, self._on_commit = desk, shard, early, on_commit
        self._last_cut = time.monotonic()
        self._segment = Segment(0, self._last_cut)
        self._lock = asyncio.Lock()

    @property
    def has_room(self) -> bool:
        """False when the store takes segments more slowly than rows end: feeding pauses."""
        return self._early.is_open or not self._is_above(2)

    def _is_above(self, times: int) -> bool:
        segment, settings = self._segment, self._desk.settings
        is_long = segment.rows >= times * settings.segment_rows
        return is_long or segment.size_bytes >= times * settings.segment_bytes

    def add(self, result: Result, end: Answer | RequestRefused) -> None:
        """Take the line of an ended row, and the tokens that it cost. May raise as EarlyEnds does."""
        self._early.add(result)
        segment, line = self._segment, encode_line(result)
        if not segment.lines:
            segment.began = time.monotonic()
        segment.lines.append(line)
        segment.size_bytes += len(line)
        segment.dead += result.is_dead
        if isinstance(end, Answer):
            segment.prompt_tokens += end.prompt_tokens
            segment.completion_tokens += end.completion_tokens

    async def keep_committing(self, until: asyncio.Event) -> None:
        """Cut and put whenever a segment is due. Never cancelled: a cut segment must be put."""
        settings = self._desk.settings
        while not until.is_set():
            is_due = time.monotonic() - self._segment.began >= settings.segment_s
            if is_due or self._is_above(1) or self._desk.stop.at_once.is_set():
                await self.flush()
            with suppress(TimeoutError):
                await asyncio.wait_for(until.wait(), min(_TICK_S, settings.segment_s))

    async def flush(self) -> None:
        """Commit what has ended, once it is clear that the first ends are to be kept.

        Raises StoreUnavailable when our patience is over.
        """
        async with self._lock:
            if not self._segment.lines or self._early.is_open:
                return
            cut, moment = self._segment, time.monotonic()
            self._segment = Segment(cut.n + 1, moment)
            path = self._desk.layout.segment(self._shard, self._desk.attempt.attempt, cut.n)
            await self._desk.patience.call(self._put, path, cut.lines)
            cut.elapsed_s, self._last_cut = max(moment - self._last_cut, 1e-9), moment
            self._count(cut)
            await self._on_commit(cut)

    def _put(self, path: str, lines: list[bytes]) -> None:
        self._desk.store.put_same(path, b"".join(lines))

    def _count(self, cut: Segment) -> None:
        counts = self._desk.attempt.counts
        if self._shard == self._desk.attempt.shard:
            counts.results += cut.rows - cut.dead
            counts.dead += cut.dead
            counts.segments += 1
            counts.segment_bytes += cut.size_bytes
        else:
            counts.ahead += cut.rows
        counts.prompt_tokens += cut.prompt_tokens
        counts.completion_tokens += cut.completion_tokens
