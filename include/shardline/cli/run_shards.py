"""Run all shards of a job on this machine: waves, retries and brakes as in the dags, in one loop.

The decisions are those of `runners`: this loop starts workers, waits, and asks what their end means.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import psutil

from shardline.attempts import read_attempt
from shardline.cli.boundary import Stopped
from shardline.cli.summary import root_option
from shardline.errors import (
    Cancelled,
    JobNotReady,
    LimitExceeded,
    StoreRefused,
    WrongInput,
)
from shardline.patience import outlast
from shardline.runners.generations import (
    current_generation,
    is_cancelled,
    open_generation,
    read_generation,
)
from shardline.runners.retry import Verdict
from shardline.runners.shard import ShardOutcome, infer_shard
from shardline.runners.waves import Brake, DeathClass, ShardEnd, death_of, find_brake, plan_waves
from shardline.segments import done_shards
from shardline.shards.manifest import read_manifest, read_shards
from shardline.status.fold import age_s
from shardline.status.read import StatusReader

if TYPE_CHECKING:
    from shardline.cli.screen import RowBar, Screen
    from shardline.plan import Plan
    from shardline.rows import Progress, ShardEntry
    from shardline.runners.local import LocalWorker
    from shardline.status.fold import JobStatus
    from shardline.store import Store

log = logging.getLogger(__name__)
_POLL_S = 1.0
_HOPELESS = (DeathClass.JOB, DeathClass.CLUSTER, DeathClass.STORE)


class Stopper:
    """SIGTERM and Ctrl-C set a flag and drain the workers; a second one makes them commit at once."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._workers: list[LocalWorker] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Drain every worker, and start no other."""
        self.asked.set()
        for worker in list(self._workers):
            worker.drain()

    @contextmanager
    def watching(self) -> Iterator[Callable[[LocalWorker], None]]:
        """What a runner calls with the worker that it has started."""
        mine: list[LocalWorker] = []

        def watch(worker: LocalWorker) -> None:
            mine.append(worker)
            self._workers.append(worker)
            # the signal may have come between the start and this line
            if self.asked.is_set():
                worker.drain()

        try:
            yield watch
        finally:
            for worker in mine:
                self._workers.remove(worker)


class ShardLoop:
    """All shards without results, wave after wave, `workers` at a time."""

    def __init__(
        self, store: Store, plan: Plan, screen: Screen, stopper: Stopper, workers: int
    ) -> None:
        self.store, self.plan, self.screen, self.stopper = store, plan, screen, stopper
        self.workers = workers
        self.reader = StatusReader(store, plan)
        self.ends: list[ShardEnd] = []
        self.dead_rows = 0
        self.generation = 0
        self.brake: Brake | None = None
        self.last_death = ""
        self.hopeless: DeathClass | None = None

    def run(self) -> int:
        """Run them; returns the generation that did.

        Raises:
            Stopped: a signal came; the workers have committed what was finished.
            LimitExceeded: a brake is on (PROTOCOL 14).
            WrongInput: the first shard died of what lies in the job.
            JobNotReady: another machine's or Airflow's workers are on it, or the first shard died because
                its engine would not run on this machine.
            StoreRefused: the first shard died because its worker may not read or write the store.
            Cancelled: somebody cancelled the job.
        """
        shards = read_shards(self.store, self.plan)
        done = done_shards(self.store, self.plan.layout)
        job_id = self.plan.job_id
        if all(entry.shard in done for entry in shards):
            return max(1, current_generation(self.store, job_id))
        self._refuse_beside_others()
        self.generation = open_generation(self.store, job_id, _run_id(), _is_alive)
        with self.screen.rows(self._read_status()) as bar:
            for wave in plan_waves(len(shards)):
                self._run_wave([e for e in shards[wave.lo : wave.hi] if e.shard not in done], bar)
        return self.generation

    def _refuse_beside_others(self) -> None:
        """Nothing would be lost or doubled beside them, but paid twice.

        What another machine or Airflow has started cannot be asked whether it lives; its workers tell.
        """
        job_id = self.plan.job_id
        current = current_generation(self.store, job_id)
        if not current or is_cancelled(self.store, job_id, current):
            return
        owner = read_generation(self.store, job_id, current).run_id
        if _is_of_this_machine(owner):
            return
        self._read_status()
        now = _now()
        words = sorted(self.reader.may_live(now), key=lambda word: age_s(word, now))
        last = next((word for word in words if not self._is_closed(word)), None)
        if last is None:
            return
        raise JobNotReady(
            f"job {job_id}: {owner} runs it; a worker on {last.shard} was heard of"
            f" {age_s(last, now):.0f} s ago. Wait for it, or stop it first:"
            f" shardline cancel {job_id}{root_option(self.store)}"
        )

    def _is_closed(self, word: Progress) -> bool:
        """Whether somebody saw the worker end, which could not say so itself."""
        found = outlast(
            lambda: read_attempt(self.store, self.plan.layout, word.shard, word.attempt),
            self.stopper.asked,
        )
        return found is not None and found.ended_at is not None

    def _run_wave(self, shards: list[ShardEntry], bar: RowBar) -> None:
        waiting = iter(shards)
        running: dict[Future[ShardOutcome], ShardEntry] = {}
        with ThreadPoolExecutor(self.workers) as pool:
            try:
                while True:
                    while len(running) < self.workers and (entry := self._next(waiting)):
                        running[pool.submit(self._run_shard, entry)] = entry
                    if not running:
                        break
                    self._watch(running, bar)
            except BaseException:
                # the pool waits for its threads, and they for their workers
                self.stopper.stop()
                raise
        self._raise_if_stopped()

    def _watch(self, running: dict[Future[ShardOutcome], ShardEntry], bar: RowBar) -> None:
        ended, _ = wait(running, timeout=_POLL_S, return_when=FIRST_COMPLETED)
        status = self._read_status()
        bar.show(status)
        for future in ended:
            self._note_end(running.pop(future), future.result(), status)

    def _next(self, waiting: Iterator[ShardEntry]) -> ShardEntry | None:
        return None if self._is_over else next(waiting, None)

    @property
    def _is_over(self) -> bool:
        return self.brake is not None or self.hopeless is not None or self.stopper.asked.is_set()

    def _run_shard(self, entry: ShardEntry) -> ShardOutcome:
        """Attempts on one shard until it is done, dead or told to stop."""
        while True:
            with self.stopper.watching() as watch:
                outcome = infer_shard(
                    self.store,
                    self.plan,
                    entry.shard,
                    self.generation,
                    stop=self.stopper.asked,
                    on_line=lambda line: log.info("%s", line),
                    on_start=watch,
                )
            decision = outcome.decision
            if decision.verdict is not Verdict.RETRY or self.stopper.asked.is_set():
                return outcome
            self.screen.say(
                f"shard {entry.shard}: {decision.reason}; again in {decision.delay_s:.0f} s"
            )
            if self._is_over_within(decision.delay_s):
                return outcome

    def _is_over_within(self, delay_s: float) -> bool:
        """Wait until an attempt is due; True as soon as none is to start any more."""
        due = time.monotonic() + delay_s
        while not self._is_over and (left := due - time.monotonic()) > 0:
            self.stopper.asked.wait(min(left, _POLL_S))
        return self._is_over

    def _note_end(self, entry: ShardEntry, outcome: ShardOutcome, status: JobStatus) -> None:
        """Remember how a shard ended, and put the brake on where it must be."""
        verdict = outcome.decision.verdict
        if verdict is Verdict.DEAD:
            self.dead_rows += entry.requests - _committed(outcome)
            self.last_death = f"; shard {entry.shard} died: {outcome.decision.reason}"
            self._say_dead(entry, outcome)
        if verdict in (Verdict.DEAD, Verdict.DONE):
            death = death_of(outcome.exit_code)
            self.ends.append(ShardEnd(_now(), death if verdict is Verdict.DEAD else None))
            # nothing has worked yet and there is one machine: the user is here and can mend it,
            # so no further shard dies of it
            if death in _HOPELESS and verdict is Verdict.DEAD and not status.shards_done:
                self.hopeless = self.hopeless or death
        self.brake = self.brake or outlast(lambda: self._find_brake(status), self.stopper.asked)

    def _find_brake(self, status: JobStatus) -> Brake | None:
        return find_brake(
            is_cancelled=is_cancelled(self.store, self.plan.job_id, self.generation),
            dead_documents=status.rows_dead + self.dead_rows,
            rows_read=read_manifest(self.store, self.plan).rows_read,
            max_dead=self.plan.job_file.limits.max_dead,
            ends=self.ends,
        )

    def _say_dead(self, entry: ShardEntry, outcome: ShardOutcome) -> None:
        found = self.plan.layout.log(entry.shard, outcome.attempt)
        is_kept = outlast(lambda: self.store.exists(found), self.stopper.asked)
        where = f"; its log: {self.store.uri_of(found)}" if is_kept else ""
        self.screen.say(f"shard {entry.shard}: dead: {outcome.decision.reason}{where}")

    def _read_status(self) -> JobStatus:
        return outlast(lambda: self.reader.read(_now()), self.stopper.asked)

    def _raise_if_stopped(self) -> None:
        job_id, status = self.plan.job_id, self._read_status()
        if status.is_done:
            return
        if self.stopper.asked.is_set():
            raise Stopped(
                f"stopped; {status.rows_done:,} of {status.rows_total:,} rows are committed and "
                f"stay; `shardline resume {job_id}{root_option(self.store)}` goes on from there"
            )
        if self.hopeless is DeathClass.JOB:
            raise WrongInput(f"job {job_id}: it cannot be run as it is{self.last_death}")
        if self.hopeless is DeathClass.CLUSTER:
            raise JobNotReady(f"job {job_id}: its engine does not work here{self.last_death}")
        if self.hopeless is DeathClass.STORE:
            raise StoreRefused(f"job {job_id}: the store refuses its workers{self.last_death}")
        if self.brake is not None:
            kind = Cancelled if self.brake.is_cancel else LimitExceeded
            raise kind(f"job {job_id}: {self.brake.reason}{self.last_death}")


def _committed(outcome: ShardOutcome) -> int:
    record = outcome.record
    return record.resumed_rows + record.counts.results + record.counts.dead if record else 0


def _run_id() -> str:
    """Names this process so that another one on this machine can see whether it lives."""
    started = psutil.Process().create_time()
    return f"cli {socket.gethostname()} {os.getpid()} {started:.2f}"


def _is_of_this_machine(run_id: str) -> bool:
    kind, *rest = run_id.split(" ")
    return kind == "cli" and len(rest) == 3 and rest[0] == socket.gethostname()


def _is_alive(run_id: str) -> bool:
    """Whether that command still runs. Another machine's cannot be seen; see _refuse_beside_others."""
    if not _is_of_this_machine(run_id):
        return False
    _, _, pid, born = run_id.split(" ")
    try:
        return f"{psutil.Process(int(pid)).create_time():.2f}" == born
    except psutil.NoSuchProcess:
        return False


def _now() -> datetime:
    return datetime.now(UTC)
