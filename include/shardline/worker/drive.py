"""The middle of an attempt: engine up, rows through the window, engines replaced, blame kept.

What to feed next is `isolation`'s to say and when to stop is `stop`'s; this module carries out both.
"""

from __future__ import annotations

import asyncio
import logging

from shardline.engines import engine_maker, known_good
from shardline.engines.answers import make_line
from shardline.engines.base import Answer, Engine, EngineDied, EngineWontStart, RequestRefused
from shardline.engines.bring_up import bring_up
from shardline.interruptible import unless
from shardline.isolation import Batch, Down, Isolation, Stage
from shardline.shard_file import Row, Shard
from shardline.worker.ahead import WorkAhead
from shardline.worker.commit import Commits
from shardline.worker.desk import Desk
from shardline.worker.feed import End, Feed, Item
from shardline.worker.journal import Journal
from shardline.worker.window import EngineDown, Window

log = logging.getLogger(__name__)

# a poison document costs three restarts; so many without one ended row mean a sick machine
_FRUITLESS_RESTARTS = 20


class Driver:
    """Runs the rows of one attempt."""

    def __init__(
        self,
        desk: Desk,
        shard: Shard,
        isolation: Isolation,
        journal: Journal,
        commits: Commits,
        ahead: WorkAhead | None,
    ) -> None:
        self._desk, self._shard, self._isolation = desk, shard, isolation
        self._journal, self._commits, self._ahead = journal, commits, ahead
        self._make_engine = engine_maker(desk.plan, desk.settings.max_num_seqs)
        self.engine: Engine = self._make_engine()
        self._good, self._good_tokens = known_good(desk.plan.job_file), float("inf")
        self._fruitless = 0
        self._running_s = self._watched_s = 0.0

    async def run(self) -> None:
        """Until every row has an end, or we are told to stop.

        Raises:
            EngineWontStart: no engine comes up, or the machine looks sick.
            WrongInput: the job is wrong (EarlyEnds), or its engine_args are.
        """
        if not await self._start():
            return
        if self._isolation.has_accused:
            await self._probe()
        while not self._desk.stop.draining.is_set() and (batch := self._isolation.next_batch()):
            down = await self._feed(batch)
            await self._commits.flush()  # if the next batch kills us, this one is out of suspicion
            if down:
                await self._went_down(batch, down)
        if not self._desk.stop.is_cancelled:
            for row, how in self._isolation.held.items():
                self._convict(row, how)

    def take_metrics(self) -> None:
        """Bring the record's metrics up to date."""
        old, metrics = self._desk.attempt.metrics, self.engine.metrics()
        metrics.peak_rss_mb, metrics.mean_running = old.peak_rss_mb, old.mean_running
        if self._watched_s:
            metrics.mean_running = round(self._running_s / self._watched_s, 2)
        self._desk.attempt.metrics = metrics

    async def _start(self) -> bool:
        """Bring the engine up; False when we were told to stop first."""
        desk = self._desk
        is_up = await bring_up(self.engine, desk.settings, desk.stop.draining, self._say_starting)
        if is_up:
            desk.clock.switch("useful")
            log.info("shard %s: engine is up", self._shard.name)
            await self._journal.say("running")
        return is_up

    async def _say_starting(self) -> None:
        await self._journal.say("starting")
        await self._desk.check_cancelled()

    async def _feed(self, batch: Batch) -> EngineDown | None:
        desk, engine, is_open = self._desk, self.engine, batch.stage in (Stage.FIRST, Stage.OPEN)
        lanes = engine.max_num_seqs * desk.settings.window_factor
        reserve = self._journal.reserve if is_open else self._journal.set_apart
        rows = [Row(self._shard, number) for number in batch.rows]
        stretch = lanes if is_open else len(rows)  # a group is recorded whole, before it is fed
        feed = Feed(rows, engine, stretch, reserve, self._may_feed)
        ahead = self._ahead if batch.stage is Stage.OPEN else None
        window = Window(desk, engine, self._row_ended, ahead)
        down = await window.run(feed, min(lanes, len(batch.rows)))
        self._running_s += window.running_s
        self._watched_s += window.watched_s
        if ahead and self._isolation.next_batch():  # never beside suspects
            await ahead.finish(engine, for_s=0)
        return down

    def _may_feed(self) -> bool:
        return self._desk.patience.is_up and self._commits.has_room

    def _row_ended(self, item: Item, end: End) -> None:
        self._keep(item, end)
        self._isolation.ended(item.row.number)
        self._fruitless = 0
        if isinstance(end, Answer) and end.completion_tokens < self._good_tokens:
            self._good, self._good_tokens = item.request, end.completion_tokens

    def _keep(self, item: Item, end: End) -> None:
        job = self._desk.plan.job_file
        self._commits.add(make_line(job, self._shard.name, item.row.number, item.request, end), end)

    async def _went_down(self, batch: Batch, down: EngineDown) -> None:
        text, how = "shard %s: engine %s with %d rows in it (%s)", down.how.name.lower()
        log.warning(text, self._shard.name, how, len(down.rows), batch.stage.value)
        self._isolation.went_down(batch, down.rows, down.how)
        if self._desk.stop.draining.is_set():
            return
        self._desk.clock.switch("restart")
        self._fruitless += 1
        if self._fruitless > _FRUITLESS_RESTARTS:
            raise EngineWontStart(f"{_FRUITLESS_RESTARTS} restarts without one finished row")
        await self.engine.stop()
        self._desk.attempt.counts.engine_restarts += 1
        self.engine = self._make_engine()
        if await self._start():
            await self._probe()

    async def _probe(self) -> None:
        """A known-good request must pass before anybody is convicted (PROTOCOL 10)."""
        told, limit_s = self._desk.stop.draining, self._desk.settings.stall_s
        try:
            is_good = await unless(told, self._do_known_good(), limit_s)
        except (EngineDied, RequestRefused, TimeoutError) as error:
            kind = type(error).__name__
            raise EngineWontStart(f"it cannot do a known-good request ({kind})") from error
        if is_good and self._isolation.has_accused:
            await self._judge()

    async def _do_known_good(self) -> None:
        (prepared,) = await asyncio.to_thread(self.engine.prepare, [self._good])
        if isinstance(prepared, RequestRefused):
            raise prepared
        await self.engine.generate("known-good", prepared)

    async def _judge(self) -> None:
        self._fruitless = 0
        attempt, held = self._desk.attempt, self._isolation.held
        final, is_sick = self._isolation.engine_is_good()
        convicted = sorted({*final, *held} - set(attempt.convictions))
        for row, how in final.items():
            self._convict(row, how)
        attempt.convictions = sorted(held)
        await self._journal.save()
        log.warning("shard %s: rows %s end engines: convicted", self._shard.name, convicted)
        if is_sick:
            raise EngineWontStart(f"{len(held)} documents ended it: this machine may be sick")

    def _convict(self, row: int, how: Down) -> None:
        refused = RequestRefused(how.value, how.value.sentence)
        self._keep(Item(Row(self._shard, row), self._shard.request(row), refused), refused)
