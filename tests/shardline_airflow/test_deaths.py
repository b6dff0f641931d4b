"""What the brakes are told of dead shards."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from shardline.reasons import ExitCode, PodOutcome
from shardline.rows import Attempt, Counts, ShardEntry
from shardline.runners.waves import DeathClass
from shardline_airflow.deaths import fold_death

ENTRY = ShardEntry("shard-00000-000", 100, 120, 1_000, "0" * 64, 10, 20)


def attempt(n: int, code: int | None, results: int = 0, resumed: int = 0) -> Attempt:
    at = f"2026-11-28T00:0{n}:00.000+00:00"
    return Attempt(
        f"0190000{n}",
        ENTRY.shard,
        1,
        "host",
        1,
        at,
        exit_code=code,
        ended_at=at,
        counts=Counts(results=results),
        resumed_rows=resumed,
    )


@pytest.mark.parametrize(
    ("code", "death"),
    [
        (ExitCode.WRONG_INPUT, DeathClass.JOB),
        (ExitCode.ENGINE_FAILED, DeathClass.CLUSTER),
        (ExitCode.STORE_REFUSED, DeathClass.STORE),
        (ExitCode.DRAINED, DeathClass.VANISHED),
        (-9, DeathClass.VANISHED),
        (None, DeathClass.VANISHED),
    ],
)
def test_the_last_attempt_says_what_the_shard_died_of(code: int | None, death: DeathClass) -> None:
    found = fold_death(ENTRY, [attempt(2, code), attempt(1, ExitCode.ENGINE_FAILED)])
    assert found.end.death is death
    assert found.end.at == datetime(2026, 11, 28, 0, 2, tzinfo=UTC)


def test_committed_rows_of_a_dead_shard_are_not_dead() -> None:
    tries = [attempt(1, -9, results=30), attempt(2, -9, results=10, resumed=30)]
    assert fold_death(ENTRY, tries).rows == 60


def test_a_shard_without_any_attempt_is_dead_as_a_whole() -> None:
    assert fold_death(ENTRY, []).rows == 100


@pytest.mark.parametrize(
    ("outcome", "death"),
    [
        (PodOutcome.WRONG_MANIFEST, DeathClass.MANIFEST),
        (PodOutcome.IMAGE_CANNOT_BE_PULLED, DeathClass.IMAGE),
        (PodOutcome.UNSCHEDULABLE, DeathClass.NO_ROOM),
        (PodOutcome.ENGINE_FAILED, DeathClass.CLUSTER),
        (PodOutcome.STORE_REFUSED, DeathClass.STORE),
        (PodOutcome.NODE_LOST, DeathClass.VANISHED),
    ],
)
def test_a_pod_s_outcome_says_it_where_there_is_one(outcome: PodOutcome, death: DeathClass) -> None:
    last = attempt(1, None)
    last.pod_outcome = outcome
    assert fold_death(ENTRY, [last]).end.death is death
