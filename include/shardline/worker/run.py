"""One attempt on one shard, from reading the plan to the commit of the results.

Any number of attempts may run on a shard, one after the other or at the same time: each skips what
segments hold, and the first to put `results` wins (PROTOCOL 7, 8). Every way to end has an exit
code; what has none is a bug, leaves the attempt's record without an end, and exits 1.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from shardline.engines import engine_maker
from shardline.engines.base import EngineWontStart
from shardline.errors import (
    Cancelled,
    JobNotReady,
    LawBroken,
    ShardInterrupted,
    StoreRefused,
    StoreUnavailable,
    WrongInput,
)
from shardline.plan import Plan, read_plan
from shardline.reasons import AttemptEnd, ExitCode
from shardline.rows import Attempt
from shardline.segments import Segments, commit_results
from shardline.shard_file import Shard, fetch_shard
from shardline.store import Store
from shardline.worker.clock import Clock
from shardline.worker.commit import Commits, Committed
from shardline.worker.drive import Driver
from shardline.worker.early import EarlyEnds
from shardline.worker.isolation import Isolation, read_history
from shardline.worker.patience import Patience
from shardline.worker.record import Record, new_attempt
from shardline.worker.report import Reporter, rss_mb
from shardline.worker.settings import WorkerSettings
from shardline.worker.stop import Stop

log = logging.getLogger(__name__)

_ENDS: dict[type[Exception], tuple[AttemptEnd, ExitCode]] = {
    WrongInput: (AttemptEnd.WRONG_INPUT, ExitCode.WRONG_INPUT),
    JobNotReady: (AttemptEnd.WRONG_INPUT, ExitCode.WRONG_INPUT),
    LawBroken: (AttemptEnd.WRONG_INPUT, ExitCode.WRONG_INPUT),
    StoreUnavailable: (AttemptEnd.STORE_UNREACHABLE, ExitCode.STORE_UNREACHABLE),
    StoreRefused: (AttemptEnd.STORE_UNREACHABLE, ExitCode.STORE_UNREACHABLE),
    EngineWontStart: (AttemptEnd.ENGINE_FAILED, ExitCode.ENGINE_FAILED),
    ShardInterrupted: (AttemptEnd.DRAINED, ExitCode.DRAINED),
    Cancelled: (AttemptEnd.CANCELLED, ExitCode.CANCELLED),
}
_KNOWN = tuple(_ENDS)


@dataclass(frozen=True)
class Assignment:
    """What a worker was started for; `folder` is its scratch space."""

    job_id: str
    shard: str
    generation: int
    attempt: str
    folder: Path

    @property
    def log_file(self) -> Path:
        return self.folder / "log"


async def infer_shard(
    store: Store, given: Assignment, settings: WorkerSettings, stop: Stop
) -> ExitCode:
    """Run the shard, or what is left of it; how it ended is in the attempt's record too."""
    patience = Patience(settings.store_patience_s)
    run: _Run | None = None
    try:
        plan = await patience.call(read_plan, store, given.job_id)
        if await patience.call(store.exists, plan.layout.results(given.shard)):
            log.info("shard %s: results exist, nothing to do", given.shard)
            return ExitCode.DONE
        run = _Run(store, plan, given, settings, stop, patience)
        await run.run()
        end, code, message = AttemptEnd.DONE, ExitCode.DONE, ""
    except _KNOWN as error:
        end, code = next(end for kind, end in _ENDS.items() if isinstance(error, kind))
        message = str(error)
        log.warning("shard %s: attempt %s: %s: %s", given.shard, given.attempt, end, message)
    if run is None or code is ExitCode.STORE_UNREACHABLE:
        return code
    try:
        await run.end(end, code, message)
    except (StoreUnavailable, StoreRefused) as error:
        log.warning("attempt %s: its end is not recorded: %s", given.attempt, error)
    return code


class _Run:
    def __init__(
        self,
        store: Store,
        plan: Plan,
        given: Assignment,
        settings: WorkerSettings,
        stop: Stop,
        patience: Patience,
    ) -> None:
        self._store, self._plan, self._given, self._settings = store, plan, given, settings
        self._stop, self._patience, self._layout = stop, patience, plan.layout
        self._attempt = new_attempt(given.attempt, given.shard, given.generation, settings)
        self._record = Record(store, plan.layout, self._attempt, patience)
        self._clock = Clock(self._attempt.seconds)
        self._reporter = Reporter(store, plan.layout, self._attempt, patience, given.log_file)
        self._commits = Commits(
            store, plan.layout, self._attempt, patience, settings, self._on_commit
        )
        self._driver: Driver | None = None

    async def end(self, how: AttemptEnd, code: ExitCode, message: str) -> None:
        """The last word, in the record and for those who watch."""
        self._clock.switch("drain" if self._stop.draining.is_set() else "tail")
        if self._driver:
            self._driver.take_metrics()
        await self._record.end(how, code, message)
        await self._reporter.say("ended")

    async def run(self) -> None:
        shard = await self._patience.call(
            fetch_shard, self._store, self._layout, self._given.shard, self._given.folder
        )
        await self._record.save()
        isolation = await self._resume(shard)
        await self._reporter.say("starting")
        await self._check_cancelled()
        if not isolation.is_over:
            await self._drive(shard, isolation)
        put = await self._patience.call(
            commit_results, self._store, self._layout, self._given.shard
        )
        log.info("shard %s: %d results committed (%s)", shard.name, len(shard), put.value)

    async def _resume(self, shard: Shard) -> Isolation:
        """Read what earlier attempts left: committed rows, and who was in flight when."""
        segments = Segments(self._store, self._layout, shard.name, self._given.folder)
        await self._patience.call(segments.refresh)
        done = {row for row, name in enumerate(shard.ids) if name in segments.lines}
        history = read_history(await self._patience.call(self._other_attempts), done)
        self._attempt.resumed_rows = self._reporter.rows_done = len(done)
        self._reporter.rows_total = len(shard)
        self._reporter.rows_dead = sum(line.is_dead for line in segments.lines.values())
        log.info(
            "shard %s: attempt %s: %d of %d rows done, %d suspects",
            shard.name,
            self._given.attempt,
            len(done),
            len(shard),
            len(history.grouped | history.alone | history.accused),
        )
        rows = [row for row in shard.in_order() if row not in done]
        return Isolation(rows, history, self._settings.group_size)

    def _other_attempts(self) -> list[Attempt]:
        listed = self._store.list(self._layout.attempts(self._given.shard))
        mine = self._layout.attempt(self._given.shard, self._given.attempt)
        return [
            msgspec.json.decode(self._store.read(found.path), type=Attempt)
            for found in listed
            if found.path != mine
        ]

    async def _drive(self, shard: Shard, isolation: Isolation) -> None:
        job = self._plan.job_file
        is_new = not self._attempt.resumed_rows
        self._driver = Driver(
            make_engine=engine_maker(self._plan, self._settings.max_num_seqs),
            model=job.name,
            refuse_truncated=job.output.truncated == "dead_letter",
            settings=self._settings,
            shard=shard,
            isolation=isolation,
            record=self._record,
            commits=self._commits,
            patience=self._patience,
            early=EarlyEnds(min(self._settings.early_rows, len(shard)) if is_new else 0),
            stop=self._stop,
            clock=self._clock,
            on_up=partial(self._reporter.say, "running"),
        )
        await self._with_commits(self._driver)
        if self._stop.is_cancelled:
            raise Cancelled(f"cancel/{self._given.generation} is there")
        if not self._commits.is_held:
            await self._commits.flush()
        if not isolation.is_over:
            raise ShardInterrupted("told to stop before every row had an end")

    async def _with_commits(self, driver: Driver) -> None:
        """Drive, while segments are committed on the side; the first to fail ends both."""
        over = asyncio.Event()
        committing = asyncio.create_task(self._commits.keep_committing(over))
        driving = asyncio.create_task(driver.run())
        await asyncio.wait({committing, driving}, return_when=asyncio.FIRST_COMPLETED)
        over.set()
        if not driving.done():
            driving.cancel()
        ends = await asyncio.gather(committing, driving, return_exceptions=True)
        self._closing = asyncio.create_task(driver.close())
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _on_commit(self, committed: Committed) -> None:
        assert self._driver
        self._driver.take_metrics()
        metrics = self._attempt.metrics
        metrics.peak_rss_mb = max(metrics.peak_rss_mb or 0, rss_mb())
        await self._record.save()
        state = "draining" if self._stop.draining.is_set() else "running"
        await self._reporter.segment(committed, state)
        await self._check_cancelled()

    async def _check_cancelled(self) -> None:
        path = self._layout.cancel(self._given.generation)
        if await self._patience.call(self._store.exists, path):
            self._stop.cancel()
            raise Cancelled(f"{path} is there")
