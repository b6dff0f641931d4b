"""One attempt on one shard, from reading the plan to the commit of the results.

Any number of attempts may run on a shard, one after the other or at the same time: each skips what
segments hold, and the first to put `results` wins (PROTOCOL 7, 8). Every way to end has an exit
code; what has none is a bug, leaves the attempt's record without an end, and exits 1.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from shardline import errors
from shardline.attempts import read_attempts
from shardline.early import EarlyEnds
from shardline.engines.base import EngineWontStart
from shardline.isolation import Isolation, read_history
from shardline.patience import Patience
from shardline.plan import read_plan
from shardline.reasons import ExitCode
from shardline.rows import Attempt
from shardline.segments import Segments, commit_results
from shardline.shard_file import Shard, fetch_shard
from shardline.store import Store
from shardline.worker.ahead import WorkAhead
from shardline.worker.clock import Clock
from shardline.worker.commit import Commits, Segment
from shardline.worker.desk import Desk
from shardline.worker.drive import Driver
from shardline.worker.journal import Journal
from shardline.worker.stop import Stop
from shardline.worker_settings import WorkerSettings

log = logging.getLogger(__name__)

_CODES: dict[type[Exception], ExitCode] = {
    errors.WrongInput: ExitCode.WRONG_INPUT,
    errors.JobNotReady: ExitCode.WRONG_INPUT,
    errors.LawBroken: ExitCode.WRONG_INPUT,
    errors.StoreUnavailable: ExitCode.STORE_UNREACHABLE,
    errors.StoreRefused: ExitCode.STORE_REFUSED,
    errors.SickMachine: ExitCode.ENGINE_FAILED,
    EngineWontStart: ExitCode.ENGINE_FAILED,
    errors.ShardInterrupted: ExitCode.DRAINED,
    errors.Cancelled: ExitCode.CANCELLED,
}


async def infer_shard(
    store: Store,
    job_id: str,
    attempt: Attempt,
    folder: Path,
    settings: WorkerSettings,
    stop: Stop,
) -> ExitCode:
    """Run the attempt's shard, or what is left of it; its record says how it ended, too.

    `folder` is scratch space; the worker's log lies in it.
    """
    patience, run = Patience(settings.store_patience_s), None
    try:
        plan = await patience.call(read_plan, store, job_id)
        if await patience.call(store.exists, plan.layout.results(attempt.shard)):
            log.info("shard %s: results exist, nothing to do", attempt.shard)
            return ExitCode.DONE
        clock = Clock(attempt.seconds)
        run = _Run(Desk(store, plan, settings, stop, patience, attempt, clock, folder))
        await run.run()
        code, message = ExitCode.DONE, ""
    except tuple(_CODES) as error:
        code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
        end, message = code.attempt_end, str(error)
        log.warning("shard %s: attempt %s: %s: %s", attempt.shard, attempt.attempt, end, message)
    if run is None or code is ExitCode.STORE_UNREACHABLE:
        return code
    try:
        await run.end(code, message)
    except (errors.StoreUnavailable, errors.StoreRefused) as error:
        log.warning("attempt %s: its end is not recorded: %s", attempt.attempt, error)
    return code


class _Run:
    def __init__(self, desk: Desk) -> None:
        self._desk, self._attempt, self._call = desk, desk.attempt, desk.patience.call
        self._journal = Journal(desk)
        self._read: Segments | None = None
        self._early = EarlyEnds(0)
        self._driver: Driver | None = None
        self._ahead: WorkAhead | None = None

    async def end(self, code: ExitCode, message: str) -> None:
        self._desk.clock.switch("drain" if self._desk.stop.draining.is_set() else "tail")
        if self._ahead:
            self._ahead.drop()
        if self._driver:
            self._driver.take_metrics()
            self._closing = asyncio.create_task(self._driver.engine.stop())
        await self._journal.end(code, message)

    async def run(self) -> None:
        desk, name, call = self._desk, self._attempt.shard, self._call
        shard = await call(fetch_shard, desk.store, desk.layout, name, desk.folder)
        await self._journal.save()
        isolation = await self._resume(shard)
        await self._journal.say("starting")
        await self._desk.check_cancelled()
        if not isolation.is_over:
            commits = Commits(desk, name, self._early, self._on_commit)
            self._driver = Driver(desk, shard, isolation, self._journal, commits, self._ahead)
            await self._drive(self._driver, commits)
            if not isolation.is_over:
                raise errors.ShardInterrupted("told to stop before every row had an end")
        put = await call(commit_results, desk.store, desk.layout, name, None, self._read, shard.ids)
        log.info("shard %s: %d results committed (%s)", name, len(shard), put.value)
        if self._ahead and self._driver:
            desk.clock.switch("ahead")
            try:
                await self._ahead.finish(self._driver.engine, desk.settings.work_ahead_s)
            except errors.ShardlineError as error:  # our own shard is done all the same
                log.warning("shard %s: work ahead ended: %s", name, error)

    async def _resume(self, shard: Shard) -> Isolation:
        """Read what earlier attempts left: committed rows, and who was in flight when."""
        desk = self._desk
        segments = self._read = Segments(desk.store, desk.layout, shard.name, desk.folder)
        await self._call(segments.refresh)
        done = {row for row, name in enumerate(shard.ids) if name in segments.lines}
        attempts = await self._call(read_attempts, desk.store, desk.layout, shard.name)
        others = [a for a in attempts if a.attempt != self._attempt.attempt]
        history = read_history(others, done)
        self._attempt.resumed_rows = len(done)
        self._journal.rows_total, self._journal.rows_done = len(shard), len(done)
        self._journal.rows_dead = sum(line.is_dead for line in segments.lines.values())
        suspects = len(history.grouped | history.alone | history.accused)
        text = "shard %s: attempt %s: %d of %d rows done, %d suspects"
        log.info(text, shard.name, self._attempt.attempt, len(done), len(shard), suspects)
        rows = [row for row in shard.in_order() if row not in done]
        self._early = EarlyEnds(0 if done else min(desk.settings.early_rows, len(shard)))
        if desk.settings.work_ahead_s and not suspects:
            avoid = {name for a in others if a.end is None for name in a.ahead}
            self._ahead = WorkAhead(desk, self._journal, self._early, avoid)
        return Isolation(rows, history, desk.settings.group_size)

    async def _drive(self, driver: Driver, commits: Commits) -> None:
        """Drive, while segments are committed on the side; the first to fail ends both."""
        over = asyncio.Event()
        committing = asyncio.create_task(commits.keep_committing(over))
        driving = asyncio.create_task(driver.run())
        await asyncio.wait({committing, driving}, return_when="FIRST_COMPLETED")
        over.set()
        if not driving.done():
            driving.cancel()
        ends = await asyncio.gather(committing, driving, return_exceptions=True)
        errors.raise_first(ends)
        if self._desk.stop.is_cancelled:
            raise errors.Cancelled(f"cancel/{self._attempt.generation} is there")
        await commits.flush()

    async def _on_commit(self, segment: Segment) -> None:
        assert self._driver
        self._driver.take_metrics()
        await self._journal.segment(segment)
        await self._desk.check_cancelled()
