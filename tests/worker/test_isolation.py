import pytest

from shardline.isolation import Batch, Down, History, Isolation, Stage, as_ranges, read_history
from shardline.reasons import AttemptEnd
from shardline.rows import Attempt

ROWS = tuple(range(100))


def vanished(fed: list[tuple[int, int]] | None = None, **fields: object) -> Attempt:
    return Attempt("a", "s", 1, "host", 1, "now", fed=fed or [], **fields)  # type: ignore[arg-type]


def run(isolation: Isolation, poison: dict[int, Down], window: int = 64) -> tuple[int, set[int]]:
    """Play an attempt against an engine that goes down on poison; (restarts, convicted)."""
    restarts, final = 0, set()
    while batch := isolation.next_batch():
        lanes = batch.rows if batch.stage is not Stage.OPEN else batch.rows[:window]
        bad = [row for row in lanes if row in poison]
        if not bad:
            for row in lanes:
                isolation.ended(row)
            continue
        isolation.went_down(batch, frozenset(lanes), poison[bad[0]])
        restarts += 1
        repeated, is_sick = isolation.engine_is_good()
        final |= set(repeated)
        if is_sick:
            break
    return restarts, final | set(isolation.held)


@pytest.mark.protocol(10)
def test_one_poison_row_costs_three_restarts_and_is_the_only_one_convicted() -> None:
    isolation = Isolation(ROWS, History())
    assert run(isolation, {37: Down.DIED}) == (3, {37})


def test_the_conviction_says_how_the_engine_went_down() -> None:
    isolation = Isolation(ROWS, History())
    run(isolation, {37: Down.STALLED})
    assert isolation.held == {37: Down.STALLED}


def test_two_poison_rows_are_both_found_in_one_attempt() -> None:
    isolation = Isolation(ROWS, History())
    assert run(isolation, {5: Down.DIED, 70: Down.STALLED})[1] == {5, 70}
    assert isolation.next_batch() is None


@pytest.mark.protocol(10)
def test_a_third_new_conviction_means_that_the_machine_may_be_sick() -> None:
    isolation = Isolation(ROWS, History())
    run(isolation, {5: Down.DIED, 70: Down.DIED, 71: Down.DIED, 72: Down.DIED})
    assert len(isolation.held) == 3


@pytest.mark.protocol(10)
def test_nobody_is_convicted_before_a_known_good_request_has_passed() -> None:
    isolation = Isolation((1,), History(alone=frozenset({1})))
    batch = isolation.next_batch()
    assert batch
    assert batch.stage is Stage.ALONE
    isolation.went_down(batch, {1}, Down.DIED)
    assert isolation.has_accused
    assert not isolation.held


@pytest.mark.protocol(10)
def test_a_conviction_that_an_earlier_attempt_recorded_is_final_and_not_counted_again() -> None:
    isolation = Isolation(ROWS, History(convicted=frozenset({3, 4, 5, 6})))
    _, found = run(isolation, dict.fromkeys((3, 4, 5, 6), Down.DIED))
    assert found == {3, 4, 5, 6}
    assert isolation.held == {}


def test_a_convicted_row_that_ends_well_on_this_machine_is_innocent() -> None:
    isolation = Isolation((1, 2, 3), History(convicted=frozenset({2})))
    assert run(isolation, {}) == (0, set())


def test_rows_not_in_the_engine_when_it_died_are_not_suspected() -> None:
    isolation = Isolation(ROWS, History())
    batch = isolation.next_batch()
    assert batch
    isolation.went_down(batch, {0, 1}, Down.DIED)
    after = isolation.next_batch()
    assert after
    assert after.stage is Stage.OPEN
    assert after.rows == ROWS[2:]


def end_all(isolation: Isolation, batch: Batch | None) -> None:
    for row in batch.rows if batch else ():
        isolation.ended(row)


@pytest.mark.protocol(10)
def test_rows_in_flight_at_one_vanished_attempt_run_last_in_the_window() -> None:
    history = read_history([vanished([(0, 9)])], {4})
    isolation = Isolation([r for r in range(20) if r != 4], history)
    end_all(isolation, isolation.next_batch())
    batch = isolation.next_batch()
    assert batch
    assert batch.stage is Stage.OPEN
    assert batch.rows == (*range(10, 16), 0, 1, 2, 3, 5, 6, 7, 8, 9)


@pytest.mark.protocol(10, 11)
def test_after_a_vanished_attempt_a_few_short_rows_that_were_not_in_flight_go_first() -> None:
    history = read_history([vanished([(0, 9)])], set())
    isolation = Isolation(range(20), history)
    assert isolation.next_batch() == Batch((16, 17, 18, 19), Stage.FIRST)
    isolation.went_down(Batch((16, 17, 18, 19), Stage.FIRST), {16, 17}, Down.DIED)
    assert isolation.next_batch() == Batch((18, 19), Stage.FIRST)
    assert Isolation(range(10), history).next_batch() == Batch((6, 7, 8, 9), Stage.FIRST)
    assert len(Isolation(range(20), read_history([], set())).next_batch().rows) == 20  # type: ignore[union-attr]


@pytest.mark.protocol(10)
def test_rows_in_flight_at_two_vanished_attempts_run_in_groups_after_all_others() -> None:
    history = read_history([vanished([(0, 39)]), vanished([(20, 59)])], set())
    isolation = Isolation(range(60), history)
    stages = []
    while batch := isolation.next_batch():
        stages.append((batch.stage, len(batch.rows)))
        end_all(isolation, batch)
    assert stages == [(Stage.FIRST, 4), (Stage.OPEN, 36), (Stage.GROUP, 16), (Stage.GROUP, 4)]


@pytest.mark.protocol(10)
def test_the_group_in_flight_at_a_vanished_attempt_runs_row_by_row() -> None:
    attempts = [vanished([(0, 31)]), vanished([(0, 31)]), vanished(suspects=[[0, 1], [2, 3]])]
    history = read_history(attempts, {0, 1})
    assert history.alone == {2, 3}
    assert history.grouped == frozenset(range(4, 32))


@pytest.mark.protocol(10)
def test_a_row_that_was_alone_in_flight_at_one_vanished_attempt_runs_alone_once_more() -> None:
    history = read_history([vanished([(0, 3)]), vanished(suspects=[[2, 3], [2]])], {0, 1, 3})
    isolation = Isolation((2,), history)
    assert not isolation.has_accused
    assert isolation.next_batch() == Batch((2,), Stage.ALONE)
    isolation.ended(2)
    assert isolation.is_over


@pytest.mark.protocol(10)
def test_a_row_that_was_alone_in_flight_at_two_vanished_attempts_is_accused_without_running() -> (
    None
):
    vanished_alone = vanished(suspects=[[2, 3], [2]])
    history = read_history([vanished_alone, vanished_alone], {0, 1})
    isolation = Isolation((2, 3), history)
    assert isolation.has_accused
    isolation.engine_is_good()
    assert isolation.held == {2: Down.DIED}


@pytest.mark.protocol(9)
def test_an_attempt_that_ended_had_nothing_in_flight() -> None:
    ended = vanished([(0, 9)], end=AttemptEnd.DRAINED)
    assert read_history([ended], set()) == History()


def test_convictions_of_attempts_that_ended_are_remembered() -> None:
    ended = vanished(convictions=[7], end=AttemptEnd.ENGINE_FAILED)
    assert read_history([ended], set()).convicted == {7}
    assert read_history([ended], {7}).convicted == frozenset()


def test_ranges_are_closed_and_hold_exactly_the_rows() -> None:
    assert as_ranges([5, 3, 4, 9, 1, 9]) == [(1, 1), (3, 5), (9, 9)]
    assert as_ranges([]) == []
