"""Waves: how shards are cut into them, which one starts next, and what stops the next one."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from shardline.runners.waves import (
    FIRST_WAVE,
    MAX_LIVING,
    WAVE,
    DeathClass,
    ShardEnd,
    Wave,
    WaveState,
    dead_in_a_row,
    find_brake,
    next_wave,
    plan_waves,
    unfinished_waves,
)

START = datetime(2026, 11, 28, tzinfo=UTC)
SIZES = [0, 1, 7, 8, 9, 1_007, 1_008, 1_009, 20_000, 102_502]


def ends(*deaths: DeathClass | None) -> list[ShardEnd]:
    return [ShardEnd(START + timedelta(minutes=i), death) for i, death in enumerate(deaths)]


@pytest.mark.parametrize("shards", SIZES)
def test_every_shard_is_in_exactly_one_wave(shards: int) -> None:
    assert [n for w in plan_waves(shards) for n in w.numbers] == list(range(shards))


@pytest.mark.protocol(14)
@pytest.mark.parametrize("shards", SIZES)
def test_the_first_wave_is_small_and_no_wave_is_larger_than_airflow_can_map(shards: int) -> None:
    sizes = [len(w.numbers) for w in plan_waves(shards)]
    assert all(0 < size <= WAVE for size in sizes)
    assert sizes[:1] == [min(shards, FIRST_WAVE)][: min(shards, 1)]


@pytest.mark.protocol(21)
def test_waves_are_numbered_from_zero_and_named_by_number_and_generation() -> None:
    waves = plan_waves(3_000)
    assert [w.n for w in waves] == [0, 1, 2, 3]
    assert waves[2].run_id("reviews-all-0a1b2c3d", 5) == "reviews-all-0a1b2c3d-w2-g5"


def test_a_wave_whose_shards_are_all_done_is_not_opened() -> None:
    waves = plan_waves(2_008)
    done = set(range(1_008)) - {1_000}
    assert unfinished_waves(waves, done) == waves[1:]
    assert unfinished_waves(waves, set(range(2_008))) == []


@pytest.mark.protocol(14)
def test_the_first_wave_runs_alone() -> None:
    waves = plan_waves(5_000)
    unopened = [(w, WaveState.UNOPENED) for w in waves]
    assert next_wave(unopened, slots=500) == waves[0]
    living = [(waves[0], WaveState.LIVING), *unopened[1:]]
    assert next_wave(living, slots=500, unfinished=1) is None
    assert next_wave([(waves[0], WaveState.ENDED), *unopened[1:]], slots=500) == waves[1]


def test_a_resume_whose_first_wave_is_done_opens_the_next_that_is_not() -> None:
    waves = plan_waves(9_000)[3:]
    assert next_wave([(w, WaveState.UNOPENED) for w in waves], slots=1_000) == waves[0]


def open_all(states: dict[Wave, WaveState], slots: int) -> list[Wave]:
    """Open waves until no other may be; no shard has results."""
    opened: list[Wave] = []
    while True:
        unfinished = sum(len(w.numbers) for w, s in states.items() if s is WaveState.LIVING)
        wave = next_wave(list(states.items()), slots=slots, unfinished=unfinished)
        if wave is None:
            return opened
        states[wave] = WaveState.LIVING
        opened.append(wave)


@pytest.mark.parametrize("seed", range(20))
def test_opening_waves_until_none_is_left_opens_each_once_and_never_too_many(seed: int) -> None:
    chance = random.Random(seed)
    states = dict.fromkeys(plan_waves(chance.randrange(30000)), WaveState.UNOPENED)
    opened: list[Wave] = []
    while any(state is not WaveState.ENDED for state in states.values()):
        opened += open_all(states, slots=1_000)
        living = [w for w, state in states.items() if state is WaveState.LIVING]
        assert 0 < len(living) <= 3
        assert len(living) == 1 or all(w.n > 0 for w in living)
        states[chance.choice(living)] = WaveState.ENDED
    assert opened == sorted(states)


def brake(**changes: object) -> str | None:
    given = {
        "is_cancelled": False,
        "dead_documents": 0,
        "rows_read": 1_000,
        "max_dead": 0.01,
        "ends": ends(),
    }
    found = find_brake(**(given | changes))  # type: ignore[arg-type]
    return found.reason if found else None


def test_nothing_brakes_a_healthy_job() -> None:
    assert brake() is None
    assert brake(dead_documents=10) is None
    assert brake(max_dead=1, dead_documents=1_000) is None


@pytest.mark.protocol(14)
def test_too_many_dead_documents_brake() -> None:
    assert brake(dead_documents=11) == (
        "11 of 1000 rows are dead, more than limits.max_dead = 0.01 allows"
    )


@pytest.mark.protocol(14, 20)
def test_a_cancelled_job_brakes_before_everything_else() -> None:
    found = find_brake(is_cancelled=True, dead_documents=99, rows_read=100, max_dead=0, ends=ends())
    assert found is not None
    assert found.is_cancel


@pytest.mark.protocol(14)
def test_eight_shards_in_a_row_that_die_of_one_class_brake() -> None:
    assert "engine_failed" in str(brake(ends=ends(None, *[DeathClass.CLUSTER] * 8)))
    assert brake(ends=ends(*[DeathClass.CLUSTER] * 7)) is None


@pytest.mark.protocol(14)
@pytest.mark.parametrize("other", [None, DeathClass.JOB])
@pytest.mark.parametrize("at", range(8))
def test_a_shard_that_ended_otherwise_breaks_the_row(at: int, other: DeathClass | None) -> None:
    deaths: list[DeathClass | None] = [DeathClass.CLUSTER] * 8
    deaths[at] = other
    assert dead_in_a_row(ends(*deaths)) is None


def test_the_row_is_one_of_time_not_of_listing() -> None:
    listed = ends(None, *[DeathClass.JOB] * 8)
    random.Random(0).shuffle(listed)
    assert dead_in_a_row(listed) is DeathClass.JOB


def after_first(*states: WaveState) -> list[tuple[Wave, WaveState]]:
    waves = plan_waves(FIRST_WAVE + WAVE * len(states))
    return list(zip(waves, [WaveState.ENDED, *states], strict=True))


UNOPENED, LIVING = WaveState.UNOPENED, WaveState.LIVING


@pytest.mark.parametrize(("slots", "living"), [(100, 1), (1_000, 2), (3_000, 6)])
def test_waves_are_admitted_until_every_slot_has_a_shard_and_one_waits_for_it(
    slots: int, living: int
) -> None:
    waves = dict(after_first(*[UNOPENED] * 10))
    assert len(open_all(waves, slots)) == living


def test_stragglers_never_idle_the_fleet() -> None:
    stragglers = after_first(*[LIVING] * 4, *[UNOPENED] * 3)
    fifth = stragglers[5][0]
    assert next_wave(stragglers, slots=100, unfinished=4) == fifth
    assert next_wave(stragglers, slots=100, unfinished=199) == fifth
    assert next_wave(stragglers, slots=100, unfinished=200) is None


def test_the_number_of_living_waves_has_an_end() -> None:
    many = after_first(*[LIVING] * MAX_LIVING, UNOPENED)
    assert next_wave(many, slots=10_000, unfinished=MAX_LIVING) is None


def test_the_first_wave_lives_alone_whatever_the_pool() -> None:
    unopened = [(wave, UNOPENED) for wave in plan_waves(5_000)]
    assert next_wave(unopened, slots=10_000) == unopened[0][0]
    living = [(unopened[0][0], LIVING), *unopened[1:]]
    assert next_wave(living, slots=10_000, unfinished=1) is None
