"""The middle of an attempt: engine up, rows through the window, engines replaced, blame kept.

What to feed next is `isolation`'s to say and when to stop is `stop`'s; this module carries out both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from shardline.engines.answers import make_dead, make_result
from shardline.engines.base import (
    Answer,
    Engine,
    EngineDied,
    EngineWontStart,
    RequestRefused,
)
from shardline.reasons import DeadLetterReason
from shardline.rows import Request, Result
from shardline.shard_file import Shard
from shardline.worker.clock import Clock
from shardline.worker.commit import Commits
from shardline.worker.early import EarlyEnds
from shardline.worker.feed import EngineDown, Feed, Window
from shardline.worker.isolation import Batch, Down, Isolation, Stage
from shardline.worker.patience import Patience
from shardline.worker.record import Record
from shardline.worker.settings import WorkerSettings
from shardline.worker.stall import StallTimer
from shardline.worker.stop import Stop

log = logging.getLogger(__name__)

# a poison document costs three restarts; so many without one ended row mean a sick machine
_FRUITLESS_RESTARTS = 20
_BUILT_IN = Request(
    "known-good",
    "POST",
    "/v1/chat/completions",
    {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "temperature": 0},
)


class Driver:
    """Runs the rows of one attempt."""

    def __init__(
        self,
        *,
        make_engine: Callable[[], Engine],
        model: str,
        refuse_truncated: bool,
        settings: WorkerSettings,
        shard: Shard,
        isolation: Isolation,
        record: Record,
        commits: Commits,
        patience: Patience,
        early: EarlyEnds,
        stop: Stop,
        clock: Clock,
        on_up: Callable[[], Awaitable[None]],
    ) -> None:
        self._on_up = on_up
        self._make_engine, self._model, self._refuse_truncated = (
            make_engine,
            model,
            refuse_truncated,
        )
        self._settings, self._shard, self._isolation = settings, shard, isolation
        self._record, self._commits, self._patience = record, commits, patience
        self._early, self._stop, self._clock = early, stop, clock
        self._engine = make_engine()
        self._good: tuple[int, int] | None = None  # (completion tokens, row) of the cheapest answer
        self._fruitless = 0
        self._running: list[float] = []
        commits.is_held = early.is_open

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
        while not self._stop.draining.is_set() and (batch := self._isolation.next_batch()):
            down = await self._feed(batch)
            if batch.stage is not Stage.OPEN or down:
                await self._commit_apart()
            if down:
                await self._went_down(batch, down)
        if not self._stop.is_cancelled:
            self._commit_held()

    def take_metrics(self) -> None:
        """Bring the record's metrics up to date."""
        metrics = self._engine.metrics()
        old = self._record.attempt.metrics
        metrics.peak_rss_mb, metrics.mean_running = old.peak_rss_mb, old.mean_running
        if self._running:
            metrics.mean_running = round(sum(self._running) / len(self._running), 2)
        self._record.attempt.metrics = metrics

    async def close(self) -> None:
        await self._engine.stop()

    async def _start(self) -> bool:
        """Bring the engine up; False when we were told to stop first."""
        starting = asyncio.ensure_future(self._engine.start())
        told = asyncio.ensure_future(self._stop.draining.wait())
        await asyncio.wait(
            {starting, told},
            timeout=self._settings.engine_start_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        told.cancel()
        if starting.done():
            starting.result()
            self._clock.switch("useful")
            log.info("shard %s: engine is up", self._shard.name)
            await self._on_up()
            return True
        starting.cancel()
        if not self._stop.draining.is_set():
            raise EngineWontStart(f"not up after {self._settings.engine_start_s:.0f} s")
        return False

    async def _feed(self, batch: Batch) -> EngineDown | None:
        lanes = self._engine.max_num_seqs * self._settings.window_factor
        if batch.stage is Stage.OPEN:
            feed = Feed(batch.rows, lanes, self._record.reserve, self._may_feed)
        else:
            await self._record.set_apart(batch.rows)
            feed = Feed(batch.rows, lanes, _recorded_already, self._may_feed)
        stall = StallTimer(self._settings.stall_s)
        window = Window(self._engine, self._shard, self._stop, self._row_ended, stall, self._clock)
        down = await window.run(feed, min(lanes, len(batch.rows)))
        if window.mean_running is not None:
            self._running.append(window.mean_running)
        return down

    def _may_feed(self) -> bool:
        return self._patience.is_up and self._commits.has_room

    async def _row_ended(self, row: int, end: Answer | RequestRefused) -> None:
        self._keep(row, self._line(row, end))
        self._isolation.ended(row)
        self._fruitless = 0
        if isinstance(end, Answer) and (
            self._good is None or end.completion_tokens < self._good[0]
        ):
            self._good = (end.completion_tokens, row)

    def _keep(self, row: int, result: Result) -> None:
        """A row has its end: what is to be committed of it, and what it says of the job.

        A conviction is an end too: a shard of nothing else must not be held back for ever.
        """
        self._early.add(result)
        self._commits.is_held = self._early.is_open
        self._commits.add(row, result)

    def _line(self, row: int, end: Answer | RequestRefused) -> Result:
        request, line_id = self._shard.request(row), f"{self._shard.name}-{row:06d}"
        if isinstance(end, RequestRefused):
            return make_dead(request, line_id, end.reason, str(end))
        return make_result(
            request,
            line_id,
            end,
            model=self._model,
            refuse_truncated=self._refuse_truncated,
        )

    async def _commit_apart(self) -> None:
        """Groups are committed one by one: if the next one kills us, these are out of suspicion."""
        if not self._commits.is_held:
            await self._commits.flush()

    async def _went_down(self, batch: Batch, down: EngineDown) -> None:
        log.warning(
            "shard %s: engine %s with %d rows in it (%s)",
            self._shard.name,
            down.how.name.lower(),
            len(down.rows),
            batch.stage.value,
        )
        self._isolation.went_down(batch, down.rows, down.how)
        if self._stop.draining.is_set():
            return
        await self._restart()

    async def _restart(self) -> None:
        self._clock.switch("restart")
        self._fruitless += 1
        if self._fruitless > _FRUITLESS_RESTARTS:
            raise EngineWontStart(f"{_FRUITLESS_RESTARTS} restarts without one finished row")
        await self._engine.stop()
        self._record.attempt.counts.engine_restarts += 1
        self._engine = self._make_engine()
        if await self._start():
            await self._probe()

    async def _probe(self) -> None:
        """A known-good request must pass before anybody is convicted."""
        request = self._shard.request(self._good[1]) if self._good else _BUILT_IN
        try:
            async with asyncio.timeout(self._settings.stall_s):
                (prepared,) = await asyncio.to_thread(self._engine.prepare, [request])
                if isinstance(prepared, RequestRefused):
                    raise prepared
                await self._engine.generate("known-good", prepared)
        except (EngineDied, RequestRefused, TimeoutError) as error:
            raise EngineWontStart(
                f"the restarted engine cannot do a known-good request ({type(error).__name__})"
            ) from error
        await self._convict()

    async def _convict(self) -> None:
        if not self._isolation.has_accused:
            return
        self._fruitless = 0
        final, is_sick = self._isolation.engine_is_good()
        convicted = sorted({*final, *self._isolation.held} - set(self._record.attempt.convictions))
        for row, how in final.items():
            self._keep(row, self._conviction(row, how))
        self._record.attempt.convictions = self._isolation.convictions
        await self._record.save()
        log.warning("shard %s: rows %s end engines: convicted", self._shard.name, convicted)
        if is_sick:
            raise EngineWontStart(
                f"{len(self._isolation.held)} documents ended the engine: this machine may be sick"
            )

    def _commit_held(self) -> None:
        for row, how in self._isolation.held.items():
            self._keep(row, self._conviction(row, how))

    def _conviction(self, row: int, how: Down) -> Result:
        reason: DeadLetterReason = how.value
        line_id = f"{self._shard.name}-{row:06d}"
        return make_dead(self._shard.request(row), line_id, reason, reason.sentence)


async def _recorded_already(rows: object) -> None:
    """Groups stand in the record before their feed is made."""
