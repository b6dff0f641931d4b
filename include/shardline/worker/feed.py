"""The window: an engine's slots kept full from one stream of rows, never a chunk that is waited for.

Lanes (a few per slot of the engine) each take the next row, run it, hand its end over, and take the
next. Rows are written to the attempt's record before a lane gets them, one stretch ahead, so that
nobody waits for the store while rows are left in the stretch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from shardline.engines.base import Answer, Engine, EngineDied, RequestRefused
from shardline.reasons import DeadLetterReason
from shardline.shard_file import Shard
from shardline.worker.clock import Clock
from shardline.worker.isolation import Down
from shardline.worker.stall import StallTimer
from shardline.worker.stop import Stop

log = logging.getLogger(__name__)

_CLOSED_S = 0.05
_TICK_S = 1.0
_LAST_WORDS_S = 1.0

Reserve = Callable[[Sequence[int]], Awaitable[None]]
OnEnd = Callable[[int, Answer | RequestRefused], Awaitable[None]]


@dataclass(frozen=True)
class EngineDown:
    """An engine died or hung, with these rows in it."""

    how: Down
    rows: frozenset[int]


class Feed:
    """Rows in order, each recorded before it is taken."""

    def __init__(
        self, rows: Sequence[int], stretch: int, reserve: Reserve, is_open: Callable[[], bool]
    ) -> None:
        self._rows, self._stretch = deque(rows), stretch
        self._reserve, self._is_open = reserve, is_open
        self._recorded: deque[int] = deque()
        self._ahead: asyncio.Task[list[int]] | None = None
        self._lock = asyncio.Lock()
        self.is_closed = False

    @property
    def is_empty(self) -> bool:
        return not (self._rows or self._recorded or self._ahead)

    async def take(self) -> int | None:
        """The next row; None when there is none, or feeding has ended. Waits while it is paused."""
        async with self._lock:
            while not self.is_closed and not self._is_open():  # noqa: ASYNC110
                # only the lane that holds the lock polls
                await asyncio.sleep(_CLOSED_S)
            if self.is_closed:
                return None
            if not self._recorded:
                await self._next_stretch()
            return self._recorded.popleft() if self._recorded and not self.is_closed else None

    async def _next_stretch(self) -> None:
        self._ahead = self._ahead or self._record_ahead()
        if self._ahead:
            # a lane that is cancelled here must not cancel the write: a torn-off thread could
            # land an old record on top of the attempt's last one
            self._recorded.extend(await asyncio.shield(self._ahead))
            self._ahead = self._record_ahead()

    def _record_ahead(self) -> asyncio.Task[list[int]] | None:
        stretch = [self._rows.popleft() for _ in range(min(self._stretch, len(self._rows)))]
        return asyncio.create_task(self._record(stretch)) if stretch else None

    async def _record(self, rows: list[int]) -> list[int]:
        await self._reserve(rows)
        return rows

    async def close(self) -> None:
        """No lane gets another row; a write that has begun is waited for.

        Should it fail, its rows were never fed; a store that is down is noticed by the next call.
        """
        self.is_closed = True
        if self._ahead:
            await asyncio.gather(self._ahead, return_exceptions=True)


class Window:
    """Runs rows on one engine until they have ended, the engine goes down, or we are to stop."""

    def __init__(
        self,
        engine: Engine,
        shard: Shard,
        stop: Stop,
        on_end: OnEnd,
        stall: StallTimer,
        clock: Clock,
    ) -> None:
        self._engine, self._shard, self._stop, self._on_end = engine, shard, stop, on_end
        self._stall, self._clock = stall, clock
        self._in_flight: set[int] = set()
        self._down: EngineDown | None = None
        self._woken = asyncio.Event()
        self._running_s = self._seconds = 0.0

    @property
    def mean_running(self) -> float | None:
        """Mean number of slots at work, sampled every tick."""
        return self._running_s / self._seconds if self._seconds else None

    async def run(self, feed: Feed, lanes: int) -> EngineDown | None:
        """Feed until the end. Rows in flight when this returns without EngineDown were dropped."""
        self._stall.restart(time.monotonic())
        tasks = [asyncio.create_task(self._lane(feed)) for _ in range(lanes)]
        for task in tasks:
            task.add_done_callback(lambda _: self._woken.set())
        try:
            await self._watch(feed, tasks)
        finally:
            feed.is_closed = True
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            await feed.close()
        for end in ends:
            if isinstance(end, Exception):
                raise end
        return self._down

    async def _watch(self, feed: Feed, tasks: list[asyncio.Task[None]]) -> None:
        while not all(task.done() for task in tasks):
            if any(task.done() and task.exception() for task in tasks):
                return
            if self._stop.draining.is_set():
                feed.is_closed = True
                self._clock.switch("drain")
            if self._stop.at_once.is_set():
                return
            if self._down:
                if self._down.how is Down.DIED:  # what it had answered may still be on its way
                    await asyncio.wait(tasks, timeout=_LAST_WORDS_S)
                return
            self._look(feed)
            if not self._down:
                await self._pause()

    def _look(self, feed: Feed) -> None:
        if feed.is_empty:
            self._clock.switch("tail")
        moment = time.monotonic()
        if not self._in_flight:
            self._stall.restart(moment)
        elif self._stall.has_rung(moment, self._engine.beat()):
            self._clock.move("stall", self._stall.after_s)
            self._down = EngineDown(Down.STALLED, frozenset(self._in_flight))

    async def _pause(self) -> None:
        """Until a lane ends, somebody stops us, or a tick is over."""
        began = time.monotonic()
        waits = [
            asyncio.create_task(e.wait()) for e in (self._woken, self._stop.at_once, *self._drain())
        ]
        await asyncio.wait(
            waits, timeout=min(_TICK_S, self._stall.tick_s), return_when=asyncio.FIRST_COMPLETED
        )
        for wait in waits:
            wait.cancel()
        self._woken.clear()
        elapsed = time.monotonic() - began
        self._seconds += elapsed
        self._running_s += elapsed * min(len(self._in_flight), self._engine.max_num_seqs)

    def _drain(self) -> tuple[asyncio.Event, ...]:
        return () if self._stop.draining.is_set() else (self._stop.draining,)

    async def _lane(self, feed: Feed) -> None:
        while not self._down and (row := await feed.take()) is not None:
            try:
                end = await self._run_row(row)
            except EngineDied:
                self._down = self._down or EngineDown(Down.DIED, frozenset(self._in_flight))
                return
            self._in_flight.discard(row)
            self._stall.restart(time.monotonic())
            await self._on_end(row, end)

    async def _run_row(self, row: int) -> Answer | RequestRefused:
        request = self._shard.request(row)
        try:
            (prepared,) = await asyncio.to_thread(self._engine.prepare, [request])
            if isinstance(prepared, RequestRefused):
                return prepared
            if self._down:
                raise EngineDied("before this row reached it")
            self._in_flight.add(row)
            return await self._engine.generate(request.custom_id, prepared)
        except RequestRefused as refused:
            return refused
        except EngineDied:
            raise
        except Exception as error:
            # the per-row boundary: whatever one document does to us is its own dead letter
            log.exception("shard %s: row %d failed", self._shard.name, row)
            return RequestRefused(DeadLetterReason.ENGINE_ERROR, f"{type(error).__name__}: {error}")
