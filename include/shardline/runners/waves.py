"""Which shards run together, which wave starts next, and what stops the next one.

A job of 100,000 shards in one dag run stalls Airflow's scheduler, so shards run in waves of at most
1,000. The first wave is 8 shards: a job that cannot work fails there, before it has cost anything.
A wave is named by its number and the generation, never by chance, so that whoever opens it again
joins the one that lives (PROTOCOL 14, 21).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import pairwise

from shardline.reasons import ExitCode

FIRST_WAVE = 8
WAVE = 1_000
MAX_LIVING = 16
"""Waves with a few stragglers each, while others keep the pool full."""
QUEUED = 2
"""Shards admitted per slot of the pool: one runs, one waits for it. More only fills Airflow's tables,
and keeps the slots from the next job."""
DEAD_IN_A_ROW = 8


@dataclass(frozen=True, order=True)
class Wave:
    """Shards `lo` to `hi` (excluded) of a job, by their number in the manifest."""

    n: int
    lo: int
    hi: int

    @property
    def numbers(self) -> range:
        return range(self.lo, self.hi)

    def run_id(self, job_id: str, generation: int) -> str:
        """The name of the dag run that runs it."""
        return f"{job_id}-w{self.n}-g{generation}"


class WaveState(StrEnum):
    """Where a wave is. LIVING: its dag run is queued or running."""

    UNOPENED = "unopened"
    LIVING = "living"
    ENDED = "ended"


class DeathClass(StrEnum):
    """Why a shard died, as far as another shard may die of the same."""

    JOB = "wrong_input"
    CLUSTER = "engine_failed"
    STORE = "store_refused"
    VANISHED = "vanished"
    # what a pod alone can die of
    MANIFEST = "wrong_manifest"
    IMAGE = "image_cannot_be_pulled"
    NO_ROOM = "unschedulable"
    REFUSED = "refused"
    WONT_START = "wont_start"
    MEMORY = "oom_killed"
    STORAGE = "storage_exceeded"
    DEADLINE = "deadline"


_DEATHS: dict[int | None, DeathClass] = {
    ExitCode.WRONG_INPUT: DeathClass.JOB,
    ExitCode.ENGINE_FAILED: DeathClass.CLUSTER,
    ExitCode.STORE_REFUSED: DeathClass.STORE,
}


def death_of(exit_code: int | None) -> DeathClass:
    """What a shard died of, by how its last worker ended; None when nobody saw that."""
    return _DEATHS.get(exit_code, DeathClass.VANISHED)


@dataclass(frozen=True)
class ShardEnd:
    """When a shard ended, and what it died of; None when it is done."""

    at: datetime
    death: DeathClass | None


@dataclass(frozen=True)
class Brake:
    """Why no further wave starts, in one line."""

    reason: str
    is_cancel: bool = False


def plan_waves(shards: int) -> list[Wave]:
    """Cut shard numbers 0..shards into waves, always in the same way."""
    edges = [0, *range(FIRST_WAVE, shards, WAVE), shards]
    return [Wave(n, lo, hi) for n, (lo, hi) in enumerate(pairwise(edges)) if hi > lo]


def unfinished_waves(waves: Iterable[Wave], done: Container[int]) -> list[Wave]:
    """The waves with at least one shard that has no results; `done` holds shard numbers."""
    return [w for w in waves if any(n not in done for n in w.numbers)]


def next_wave(
    states: Sequence[tuple[Wave, WaveState]], *, slots: int, unfinished: int = 0
) -> Wave | None:
    """The wave to open now, if any; the first one lives alone.

    Decided by the shards that are left in the living ones, so that stragglers never idle the fleet,
    and a job takes no more than it can use. One at a time: to map a wave's thousand tasks stalls
    Airflow's scheduler for some eight seconds, and two of them at once for twice as long.

    Args:
        slots: of the pool.
        unfinished: shards of living waves that have no results.
    """
    living = sum(state is WaveState.LIVING for _, state in states)
    unopened = (wave for wave, state in states if state is WaveState.UNOPENED)
    is_first_over = all(state is WaveState.ENDED for wave, state in states if wave.n == 0)
    has_room = living < MAX_LIVING and unfinished < QUEUED * slots if is_first_over else not living
    return next(unopened, None) if has_room else None


def find_brake(
    *,
    is_cancelled: bool,
    dead_documents: int,
    rows_read: int,
    max_dead: float,
    ends: Iterable[ShardEnd],
) -> Brake | None:
    """Why no new wave may start, or None.

    Args:
        dead_documents: dead letters so far, and all unfinished documents of dead shards.
        max_dead: the share of `rows_read` that may be dead (limits.max_dead).
        ends: how shards of this generation ended, in any order.
    """
    if is_cancelled:
        return Brake("the job was cancelled", is_cancel=True)
    if dead_documents > max_dead * rows_read:
        return Brake(
            f"{dead_documents} of {rows_read} rows are dead, more than limits.max_dead = {max_dead:g} allows"
        )
    if death := dead_in_a_row(ends):
        return Brake(
            f"{DEAD_IN_A_ROW} shards in a row died of {death}: it lies in the job or the cluster, "
            "not in the documents"
        )
    return None


def dead_in_a_row(ends: Iterable[ShardEnd], n: int = DEAD_IN_A_ROW) -> DeathClass | None:
    """What each of the last `n` shards that ended died of, if it is one class for all."""
    last = sorted(ends, key=lambda e: e.at)[-n:]
    deaths = {e.death for e in last}
    return next(iter(deaths)) if len(last) == n and len(deaths) == 1 else None
