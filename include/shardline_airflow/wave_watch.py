"""Watch the waves of one generation: open the next, tell how far the job is, put the brake on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from shardline.errors import Cancelled, LimitExceeded
from shardline.runners.generations import is_cancelled
from shardline.runners.pool import PoolWatch
from shardline.runners.waves import (
    DEAD_IN_A_ROW,
    Brake,
    Wave,
    WaveState,
    find_brake,
    next_wave,
)
from shardline_airflow.deaths import done_ends, read_death
from shardline_airflow.runs import DagRuns

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


def done_numbers(store: Store, plan: Plan, shards: Sequence[ShardEntry]) -> set[int]:
    """Numbers of the shards whose results exist."""
    from shardline.segments import done_shards

    return numbers_of(shards, done_shards(store, plan.layout))


def numbers_of(shards: Sequence[ShardEntry], names: Container[str]) -> set[int]:
    """The numbers of the shards with these names."""
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
        if brake.is_cancel and len(self.done) < len(self.shards):
            raise Cancelled(f"job {self.plan.job_id}: {brake.reason}")
        if is_work_left:
            raise LimitExceeded(f"job {self.plan.job_id}: {brake.reason}")

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
        self.done = numbers_of(self.shards, reader.done)
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
