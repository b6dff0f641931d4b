"""Run a job's waves: open them as dag runs, a few at a time, and wait until none is unfinished.

How it works: a wave's dag run is named `{job_id}-w{n}-g{generation}`. To open it is to ask for that
name; if it exists, it is joined. So this task may be retried, or run twice at once, and nothing is
doubled. It holds no state of its own: what is done is read from the store, what lives from Airflow.

Cleared: while waves of the current generation live, they are joined. Otherwise the next generation
is opened, and its waves hold the shards without results only: each of them has fresh attempts
(PROTOCOL 11 counts within a generation), and the dead waves stay as they ended, for the record.

What it does not do: it does not stop waves that live when it is killed. Cancelling is done by a
marker in the store (PROTOCOL 20).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from shardline.errors import Cancelled, LimitExceeded
from shardline.job import JobFile
from shardline.runners.generations import current_generation, is_cancelled
from shardline.runners.gpu.settings import read_gpu_settings
from shardline.runners.pool import PoolWatch
from shardline.runners.waves import (
    DEAD_IN_A_ROW,
    Brake,
    Wave,
    WaveState,
    find_brake,
    next_wave,
    plan_waves,
    unfinished_waves,
)
from shardline_airflow.deaths import done_ends, read_death
from shardline_airflow.runs import DagRuns
from shardline_airflow.stages import gives_up, open_job
from shardline_airflow.starts import join_or_open, start_of

if TYPE_CHECKING:
    from shardline.plan import Plan
    from shardline.rows import ShardEntry
    from shardline.status.read import StatusReader
    from shardline.store import Store

log = logging.getLogger(__name__)

INFER_TASK = "infer_shard"
NUMBERS_TASK = "shard_numbers"
IN_POOL = ("queued", "running", "deferred")
BEFORE_POOL = ("scheduled",)
POLL_S = 2.0
STATUS_S = 12.0
LOCAL_SLOTS = 1_000
"""More than one machine has: its pool is not known here, and more than three living waves are waste."""


@gives_up
def run_waves(job_id: str, context: Any) -> int:
    """Run all shards without results; return the generation that ran them.

    Raises:
        GivenUp: a brake was on (PROTOCOL 14); waves that were open have ended.
    """
    from shardline.shards.manifest import read_manifest, read_shards

    store, plan = open_job(job_id)
    shards = read_shards(store, plan)
    done = done_numbers(store, plan, shards)
    waves = unfinished_waves(plan_waves(len(shards)), done)
    if not waves:
        log.info("job %s: all %d shards have results, no wave is opened", job_id, len(shards))
        return current_generation(store, job_id)
    where = place_of(plan.job_file)
    runs, start = DagRuns(where.dag_id), start_of(context["ti"])
    generation = join_or_open(store, plan, plan_waves(len(shards)), start, runs)
    log.info(
        "job %s: generation %d, %d of %d shards to run in %d waves",
        job_id,
        generation,
        len(shards) - len(done),
        len(shards),
        len(waves),
    )
    rows_read = read_manifest(store, plan).rows_read
    watch = Watch(store, plan, shards, generation, rows_read, context["ti"], runs, where.slots)
    if where.pool is not None:
        watch.pool = PoolWatch(where.pool, where.slots)
    watch.run(waves)
    return generation


def wait_for_waves(
    job_id: str, generation: int, pause: Callable[[float], None] = time.sleep
) -> None:
    """Wait for waves that were cleared after `run_waves` had ended: they are not to be sealed."""
    from shardline.shards.manifest import read_shards

    store, plan = open_job(job_id)
    runs = DagRuns(place_of(plan.job_file).dag_id)
    waves = plan_waves(len(read_shards(store, plan)))
    names = [wave.run_id(job_id, generation) for wave in waves] if generation else []
    while n := runs.count_living(names):
        log.info("job %s: %d waves of generation %d run again, waiting", job_id, n, generation)
        pause(STATUS_S)


@dataclass(frozen=True)
class Place:
    """Where a job's waves run: a dag, the slots of its pool, and the pool if its size must be so."""

    dag_id: str
    slots: int
    pool: str | None = None


def place_of(job: JobFile) -> Place:
    """The dag of the job's runner."""
    if job.run_on == "local":
        return Place("infer_locally", LOCAL_SLOTS)
    settings = read_gpu_settings()
    if job.gpu is not None and job.gpu.queue == "short":
        return Place("infer_on_gpu_short", settings.pods_short, "gpu_short")
    return Place("infer_on_gpu", settings.pods, "gpu")


def done_numbers(store: Store, plan: Plan, shards: Sequence[ShardEntry]) -> set[int]:
    """Numbers of the shards whose results exist."""
    from shardline.segments import done_shards

    names = done_shards(store, plan.layout)
    return {n for n, entry in enumerate(shards) if entry.shard in names}


@dataclass
class Watch:
    """The waves of one generation, from the first opened to the last ended."""

    store: Store
    plan: Plan
    shards: Sequence[ShardEntry]
    generation: int
    rows_read: int
    ti: Any
    runs: DagRuns
    slots: int
    pause: Callable[[float], None] = time.sleep
    brake: Brake | None = None
    done: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    pool: PoolWatch | None = None
    _failed_before: dict[Wave, list[int]] = field(default_factory=dict)

    def run(self, waves: Sequence[Wave]) -> None:
        """Open `waves` and wait for their end. Raises LimitExceeded or Cancelled after a brake."""
        from shardline.status.read import StatusReader

        reader = StatusReader(self.store, self.plan)
        states = dict.fromkeys(waves, WaveState.UNOPENED)
        told_at = -STATUS_S
        while self._goes_on(states) or self._is_cleared(states):
            wave = next_wave(
                list(states.items()), slots=self.slots, unfinished=self._unfinished(states)
            )
            if wave or time.monotonic() - told_at >= STATUS_S:
                told_at = time.monotonic()
                self._look(reader, states)  # a brake must be seen before the next wave starts
            if wave and self.brake is None:
                self._open(wave)
                states[wave] = WaveState.LIVING
            self.pause(POLL_S)
            self._refresh(states)
        self._look(reader, states)
        if self.brake is not None:
            self._stop(self.brake, WaveState.UNOPENED in states.values())

    def _goes_on(self, states: dict[Wave, WaveState]) -> bool:
        waited_for = {WaveState.LIVING} | (set() if self.brake else {WaveState.UNOPENED})
        return not waited_for.isdisjoint(states.values())

    def _is_cleared(self, states: dict[Wave, WaveState]) -> bool:
        """Whether waves that had ended run again; then they are waited for, as any that lives."""
        names = {
            wave: wave.run_id(self.plan.job_id, self.generation)
            for wave, state in states.items()
            if state is WaveState.ENDED
        }
        if not self.runs.count_living(list(names.values())):
            return False
        again = [wave for wave, run_id in names.items() if self.runs.is_living(run_id)]
        for wave in again:
            states[wave] = WaveState.LIVING
            log.info("joined %s: somebody cleared it", names[wave])
        return bool(again)

    def _unfinished(self, states: dict[Wave, WaveState]) -> int:
        """Shards of living waves that had neither results nor died when they were last counted."""
        living = (wave for wave, state in states.items() if state is WaveState.LIVING)
        ended = self.done | self.failed
        return sum(n not in ended for wave in living for n in wave.numbers)

    def _stop(self, brake: Brake, is_work_left: bool) -> None:
        """Raise what the brake means; where no wave was kept back, settle_shards decides."""
        if brake.is_cancel and not self._is_done():
            raise Cancelled(f"job {self.plan.job_id}: {brake.reason}")
        if is_work_left:
            raise LimitExceeded(f"job {self.plan.job_id}: {brake.reason}")

    def _is_done(self) -> bool:
        return len(done_numbers(self.store, self.plan, self.shards)) == len(self.shards)

    def _open(self, wave: Wave) -> None:
        run_id = wave.run_id(self.plan.job_id, self.generation)
        conf = {
            "job_id": self.plan.job_id,
            "lo": wave.lo,
            "hi": wave.hi,
            "generation": self.generation,
        }
        is_new = self.runs.open(run_id, conf)
        log.info(
            "%s %s: shards %d to %d",
            "opened" if is_new else "joined",
            run_id,
            wave.lo,
            wave.hi - 1,
        )

    def _refresh(self, states: dict[Wave, WaveState]) -> None:
        for wave in [w for w, state in states.items() if state is WaveState.LIVING]:
            run_id = wave.run_id(self.plan.job_id, self.generation)
            if not self.runs.is_living(run_id):
                states[wave] = WaveState.ENDED
                log.info("ended %s", run_id)

    def _look(self, reader: StatusReader, states: dict[Wave, WaveState]) -> None:
        """Tell how far the job is, and put the brake on if it must be."""
        status = reader.read(datetime.now(UTC))
        log.info("%s", status.line())
        self.done = {n for n, entry in enumerate(self.shards) if entry.shard in reader.done}
        if self.runs.is_paused():
            log.warning(
                "dag %s is paused: nothing runs until somebody unpauses it", self.runs.dag_id
            )
        if self.pool is not None:
            running = self.runs.count_tasks(INFER_TASK, IN_POOL)
            waiting = self.runs.count_tasks(INFER_TASK, BEFORE_POOL)
            if line := self.pool.look(running, waiting):
                log.warning("%s", line)
        if self.brake is None:
            self.failed = {
                n for wave, state in states.items() for n in self._failed_numbers(wave, state)
            }
            self.brake = self._find_brake(status.rows_dead)
            if self.brake is not None:
                log.error("no further wave: %s", self.brake.reason)

    def _find_brake(self, rows_dead: int) -> Brake | None:
        deaths = [
            read_death(self.store, self.plan, self.shards[n], self.generation)
            for n in sorted(self.failed)
            # whoever marks a dag run as failed marks its finished tasks too
            if n not in self.done
        ]
        ends = [death.end for death in deaths]
        if len(deaths) >= DEAD_IN_A_ROW:
            ends += done_ends(self.store, self.plan)
        return find_brake(
            is_cancelled=is_cancelled(self.store, self.plan.job_id, self.generation),
            dead_documents=rows_dead + sum(death.rows for death in deaths),
            rows_read=self.rows_read,
            max_dead=self.plan.job_file.limits.max_dead,
            ends=ends,
        )

    def _failed_numbers(self, wave: Wave, state: WaveState) -> list[int]:
        """Numbers of the wave's shards whose tasks have failed for good; of an ended wave asked once."""
        if state is WaveState.UNOPENED:
            return []
        if state is WaveState.ENDED and wave in self._failed_before:
            return self._failed_before[wave]
        run_id = wave.run_id(self.plan.job_id, self.generation)
        found = self.runs.failed_values(self.ti, run_id, mapped=INFER_TASK, source=NUMBERS_TASK)
        if state is WaveState.ENDED:
            self._failed_before[wave] = found
        return found
