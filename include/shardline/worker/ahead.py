"""Work-ahead: slots that fall idle take rows of shards that nobody has started.

They are committed as segments of *those* shards, whose own attempts will skip them. No lease is
needed: two workers that meet in one shard lose some work, never a row. Where it is known which rows
take long, the longest of eight shards go first, so that they make no tail of their own; else rows
come from the far end. When its own rows are committed a worker goes on for `work_ahead_s` at most,
then drops what would keep most slots idle; that runs again. A shard that a vanished attempt worked
ahead on is left alone: its rows may have killed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence

from blake3 import blake3

from shardline.early import EarlyEnds
from shardline.engines.answers import make_line
from shardline.engines.base import Engine, EngineDied
from shardline.errors import ShardlineError, StoreUnavailable, raise_first
from shardline.layout import sidecar_names
from shardline.segments import Segments, done_shards
from shardline.shard_file import Row, fetch_shard, in_far_order
from shardline.worker.commit import Commits, Segment
from shardline.worker.desk import Desk
from shardline.worker.feed import Feed, Item, run_item
from shardline.worker.journal import Journal

log = logging.getLogger(__name__)

_TRIES, _OPEN, _TICK_S = 32, 8, 1.0
_WORTH_WAITING = 0.5  # of the slots: below it, dropped rows cost less than idle slots


class WorkAhead:
    """Lanes beside the window's, on the shards that `avoid` does not name."""

    def __init__(self, desk: Desk, journal: Journal, early: EarlyEnds, avoid: set[str]) -> None:
        self._desk, self._journal, self._early = desk, journal, early
        self._call, self._avoid = desk.patience.call, {desk.attempt.shard, *avoid}
        self._names: deque[str] | None = None
        self._feed: Feed | None = None
        self._commits: dict[str, Commits] = {}
        self._committing: list[asyncio.Task[None]] = []
        self._lanes: list[asyncio.Task[None]] = []
        self._lock = asyncio.Lock()
        self._over, self._closed = asyncio.Event(), asyncio.Event()
        self.running = 0
        """Rows of other shards in the engine."""

    def fill(self, engine: Engine, idle: int) -> None:
        """Have so many idle slots taken, once it is clear that the job is not wrong."""
        if not (self._over.is_set() or self._early.is_open):
            new = range(idle - len(self._alive()))
            self._lanes += [asyncio.create_task(self._lane(engine)) for _ in new]

    async def finish(self, engine: Engine, for_s: float) -> None:
        """Go on for so long, then end and commit. Raises what a lane ended by."""
        until, stop = time.monotonic() + for_s, self._desk.stop.draining
        while for_s and time.monotonic() < until and not (stop.is_set() or self._over.is_set()):
            self.fill(engine, engine.max_num_seqs)
            await asyncio.wait(self._alive(), timeout=_TICK_S)
        self._over.set()
        worth = _WORTH_WAITING * engine.max_num_seqs if for_s else float("inf")
        told, timeout_s = asyncio.create_task(stop.wait()), self._desk.settings.stall_s
        while self.running > worth and not stop.is_set():
            events = [told, *self._alive()]
            done, _ = await asyncio.wait(events, timeout=timeout_s, return_when="FIRST_COMPLETED")
            if not done:
                break
        told.cancel()
        self.drop()
        ends = await asyncio.gather(*self._lanes, return_exceptions=True)
        self._closed.set()
        if self._feed:
            await self._feed.close()
        await asyncio.gather(*self._committing)
        for commits in self._commits.values():
            await commits.flush()
        raise_first(ends)

    def drop(self) -> None:
        """End at once: to a lane, an engine that is being stopped looks like a row that fails."""
        self._over.set()
        for lane in self._lanes:
            lane.cancel()

    def _alive(self) -> list[asyncio.Task[None]]:
        return [lane for lane in self._lanes if not lane.done()]

    async def _lane(self, engine: Engine) -> None:
        try:
            while item := await self._take(engine):
                self.running += 1
                try:
                    end = await run_item(engine, item)
                finally:
                    self.running -= 1
                (shard, number), job = item.row, self._desk.plan.job_file
                line = make_line(job, shard.name, number, item.request, end)
                self._commits[shard.name].add(line, end)
        except EngineDied:  # the window's own rows, if there are any, say so too
            return
        finally:
            self._over.set()

    async def _take(self, engine: Engine) -> Item | None:
        async with self._lock:
            while not (self._over.is_set() or self._desk.stop.draining.is_set()):
                if self._feed and (item := await self._feed.take()):
                    return item
                await self._open_more(engine)
        return None

    async def _open_more(self, engine: Engine) -> None:
        if self._names is None:
            self._names = deque(await self._call(self._candidates))
        rows, opened = list[Row](), 0
        while self._names and opened < _OPEN:
            name = self._names.popleft()
            try:
                if not await self._call(self._is_started, name):
                    rows += await self._open(name)
                    opened += 1
            except StoreUnavailable:
                raise
            except ShardlineError as error:  # for its own attempt to report
                log.warning("shard %s: no work ahead: %s", name, error)
        if not rows and not self._names:
            self._over.set()
        rows, slots = in_far_order(rows), engine.max_num_seqs
        self._feed = Feed(rows, engine, slots, self._still_free, self._has_room)

    def _candidates(self) -> list[str]:
        """Those that come last, in an order that differs from worker to worker."""
        me, store, layout = self._desk.attempt.attempt, self._desk.store, self._desk.layout
        left = sidecar_names(found.path for found in store.list(layout.shards_prefix))
        late = sorted(left - self._avoid - done_shards(store, layout))[-_TRIES:]
        return sorted(late, key=lambda name: blake3(f"{me} {name}".encode()).digest())

    def _is_started(self, name: str) -> bool:
        store, layout = self._desk.store, self._desk.layout
        return store.exists(layout.results(name)) or any(store.list(layout.attempts(name)))

    async def _open(self, name: str) -> list[Row]:
        desk = self._desk
        folder = desk.folder / name
        folder.mkdir()
        shard = await self._call(fetch_shard, desk.store, desk.layout, name, folder)
        segments = Segments(desk.store, desk.layout, name, folder)
        await self._call(segments.refresh)
        commits = Commits(desk, name, EarlyEnds(0), self._on_commit)
        self._commits[name] = commits
        self._committing.append(asyncio.create_task(commits.keep_committing(self._closed)))
        desk.attempt.ahead.append(name)
        await self._journal.save()
        rows = [Row(shard, n) for n in shard.in_order() if shard.ids[n] not in segments.lines]
        log.info("shard %s: working ahead on %s, %d rows", desk.attempt.shard, name, len(rows))
        return rows

    async def _on_commit(self, _: Segment) -> None:
        await self._journal.save()
        await self._desk.check_cancelled()

    def _has_room(self) -> bool:
        return self._desk.patience.is_up and all(c.has_room for c in self._commits.values())

    async def _still_free(self, rows: Sequence[Row]) -> list[Row]:
        names = {row.shard.name for row in rows}
        started = {name for name in names if await self._call(self._is_started, name)}
        return [row for row in rows if row.shard.name not in started]
