"""Work-ahead: slots that fall idle take rows from the far end of shards that nobody has started.

They are committed as segments of *that* shard; its own attempt will skip them. No lease is needed:
two workers that meet in one shard lose some work, never a row. It stops feeding when own rows have
ended: what is in flight then may finish while enough slots are at work, the rest is dropped and
runs again. A shard that a vanished attempt worked ahead on is left alone: its rows may have killed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from blake3 import blake3

from shardline.engines.answers import make_line
from shardline.engines.base import Engine, EngineDied
from shardline.errors import ShardlineError, StoreUnavailable
from shardline.layout import sidecar_names
from shardline.segments import Segments, done_shards
from shardline.shard_file import Shard, fetch_shard
from shardline.worker.commit import Commits, EarlyEnds
from shardline.worker.desk import Desk
from shardline.worker.feed import Feed, Item, run_item
from shardline.worker.journal import Journal

log = logging.getLogger(__name__)

_TRIES = 32
_WORTH_WAITING = 0.5  # of the slots: below it, dropped rows cost less than idle slots


@dataclass(frozen=True)
class _Place:
    shard: Shard
    feed: Feed
    commits: Commits
    committing: asyncio.Task[None]


class WorkAhead:
    """Lanes beside the window's, on the shards that `avoid` does not name."""

    def __init__(self, desk: Desk, journal: Journal, avoid: Collection[str]) -> None:
        self._desk, self._journal, self._call = desk, journal, desk.patience.call
        self._avoid = {desk.attempt.shard, *avoid}
        self._names: deque[str] | None = None
        self._places: list[_Place] = []
        self._lanes: list[asyncio.Task[None]] = []
        self._lock = asyncio.Lock()
        self._over, self._closed = asyncio.Event(), asyncio.Event()
        self.running = 0
        """Rows of other shards in the engine."""

    def fill(self, engine: Engine, idle: int) -> None:
        """Have so many idle slots taken."""
        if not self._over.is_set():
            new = range(idle - sum(not lane.done() for lane in self._lanes))
            self._lanes += [asyncio.create_task(self._lane(engine)) for _ in new]

    async def finish(self, engine: Engine, *, is_stopping: bool) -> None:
        """Own rows have ended: no new ones, and the last commits. Raises what a lane ended by."""
        self._over.set()
        while not is_stopping and self.running > _WORTH_WAITING * engine.max_num_seqs:
            lanes = [lane for lane in self._lanes if not lane.done()]
            timeout_s = self._desk.settings.stall_s
            ended, _ = await asyncio.wait(lanes, timeout=timeout_s, return_when="FIRST_COMPLETED")
            is_stopping = not ended or self._desk.stop.draining.is_set()
        for lane in self._lanes:
            lane.cancel()
        ends = await asyncio.gather(*self._lanes, return_exceptions=True)
        self._closed.set()
        for place in self._places:
            await place.feed.close()
            await place.committing
            await place.commits.flush()
        for failed in (end for end in ends if isinstance(end, Exception)):
            raise failed

    async def _lane(self, engine: Engine) -> None:
        while taken := await self._take(engine):
            place, item = taken
            self.running += 1
            try:
                end = await run_item(engine, item)
            except EngineDied:  # the window's own rows say so too
                return
            finally:
                self.running -= 1
            job, name = self._desk.plan.job_file, place.shard.name
            place.commits.add(make_line(job, name, item.row, item.request, end), end)

    async def _take(self, engine: Engine) -> tuple[_Place, Item] | None:
        async with self._lock:
            while not self._over.is_set():
                if self._places and (item := await self._places[-1].feed.take()):
                    return self._places[-1], item
                await self._open_next(engine)
        return None

    async def _open_next(self, engine: Engine) -> None:
        if self._names is None:
            self._names = deque(await self._call(self._candidates))
        if not self._names:
            self._over.set()
            return
        name = self._names.popleft()
        try:
            if not await self._call(self._is_started, name):
                await self._open(name, engine)
        except StoreUnavailable:
            raise
        except ShardlineError as error:  # for its own attempt to report
            log.warning("shard %s: no work ahead: %s", name, error)

    def _candidates(self) -> list[str]:
        """Those that come last, in an order that differs from worker to worker."""
        me, store, layout = self._desk.attempt.attempt, self._desk.store, self._desk.layout
        left = sidecar_names(found.path for found in store.list(layout.shards_prefix))
        late = sorted(left - self._avoid - done_shards(store, layout))[-_TRIES:]
        return sorted(late, key=lambda name: blake3(f"{me} {name}".encode()).digest())

    def _is_started(self, name: str) -> bool:
        store, layout = self._desk.store, self._desk.layout
        return store.exists(layout.results(name)) or any(store.list(layout.attempts(name)))

    async def _open(self, name: str, engine: Engine) -> None:
        desk = self._desk
        folder = desk.folder / name
        folder.mkdir()
        shard = await self._call(fetch_shard, desk.store, desk.layout, name, folder)
        segments = Segments(desk.store, desk.layout, name, folder)
        await self._call(segments.refresh)
        rows = [r for r in reversed(shard.in_order()) if shard.ids[r] not in segments.lines]
        commits = Commits(desk, name, EarlyEnds(0), lambda _: self._journal.save())

        async def reserve(_: Sequence[int]) -> None:
            if await self._call(self._is_started, name):
                feed.is_closed = True

        def is_open() -> bool:
            return desk.patience.is_up and commits.has_room

        feed = Feed(shard, rows, engine, engine.max_num_seqs, reserve, is_open)
        desk.attempt.ahead.append(name)
        await self._journal.save()
        committing = asyncio.create_task(commits.keep_committing(self._closed))
        self._places.append(_Place(shard, feed, commits, committing))
        log.info("shard %s: working ahead on %s, %d rows", desk.attempt.shard, name, len(rows))
