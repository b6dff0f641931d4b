"""The window: an engine's slots kept full from one stream of rows, never a chunk that is waited for.

Lanes (a few per slot of the engine) each take the next row, run it, hand its end over, and take the
next. When the stream has run dry and slots fall idle, rows of other shards may fill them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from shardline.engines.base import Engine, EngineDied
from shardline.errors import raise_first
from shardline.isolation import Down
from shardline.worker.ahead import WorkAhead
from shardline.worker.clock import StallTimer
from shardline.worker.desk import Desk
from shardline.worker.feed import End, Feed, Item, run_item

_TICK_S = 1.0
_LAST_WORDS_S = 1.0


@dataclass(frozen=True)
class EngineDown:
    """An engine died or hung, with these rows in it."""

    how: Down
    rows: frozenset[int]


class Window:
    """Runs rows on one engine until they have ended, the engine goes down, or we are to stop.

    `running_s` and `watched_s` say how many slot-seconds were at work in how many seconds.
    """

    def __init__(
        self,
        desk: Desk,
        engine: Engine,
        on_end: Callable[[Item, End], None],
        ahead: WorkAhead | None = None,
    ) -> None:
        self._engine, self._stop, self._clock = engine, desk.stop, desk.clock
        self._on_end, self._ahead = on_end, ahead
        self._stall = StallTimer(desk.settings.stall_s)
        self._in_flight: set[int] = set()
        self._down: EngineDown | None = None
        self._woken = asyncio.Event()
        self.running_s = self.watched_s = 0.0

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
            if self._ahead and (any(ends) or self._down or self._stop.draining.is_set()):
                await self._ahead.finish(self._engine, for_s=0)
        raise_first(ends)
        # those that ended after the death are out of suspicion
        return self._down and EngineDown(self._down.how, self._down.rows & self._in_flight)

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
        idle = self._engine.max_num_seqs - len(self._in_flight)
        if feed.is_empty and idle > 0:
            self._clock.switch("tail")
            if self._ahead and not feed.is_closed:
                self._ahead.fill(self._engine, idle)
        moment = time.monotonic()
        if not self._in_flight:
            self._stall.restart(moment)
        elif self._stall.has_rung(moment, self._engine.beat()):
            self._clock.move("stall", self._stall.after_s)
            self._down = EngineDown(Down.STALLED, frozenset(self._in_flight))

    async def _pause(self) -> None:
        """Until a lane ends, somebody stops us, or a tick is over."""
        began, running = time.monotonic(), len(self._in_flight)
        events = [self._woken, self._stop.at_once]
        if not self._stop.draining.is_set():
            events.append(self._stop.draining)
        waits = [asyncio.create_task(event.wait()) for event in events]
        tick_s = min(_TICK_S, self._stall.after_s / 10)  # the stall timer is a tenth late at most
        await asyncio.wait(waits, timeout=tick_s, return_when="FIRST_COMPLETED")
        for wait in waits:
            wait.cancel()
        self._woken.clear()
        elapsed = time.monotonic() - began
        running = (running + len(self._in_flight)) // 2
        running += self._ahead.running if self._ahead else 0
        self.watched_s += elapsed
        self.running_s += elapsed * min(running, self._engine.max_num_seqs)

    async def _lane(self, feed: Feed) -> None:
        while not self._down and (item := await feed.take()) is not None and not self._down:
            self._in_flight.add(item.row.number)
            try:
                end = await run_item(self._engine, item)
            except EngineDied:
                self._down = self._down or EngineDown(Down.DIED, frozenset(self._in_flight))
                return
            self._in_flight.discard(item.row.number)
            self._stall.restart(time.monotonic())
            self._on_end(item, end)
