from collections import Counter

import pytest

from benchmarks.faults_deck import Deck, Fault, Kind, Moment, deal


def test_the_same_seed_deals_the_same_faults() -> None:
    assert deal(60, seed=1) == deal(60, seed=1)
    assert deal(60, seed=1) != deal(60, seed=2)


def test_every_kind_falls_about_equally_often() -> None:
    counts = Counter(fault.kind for fault in deal(60, seed=3))
    assert set(counts) == set(Kind)
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_no_engine_is_shot_at_when_there_is_none_and_no_signal_is_a_second_one(seed: int) -> None:
    for fault in deal(200, seed):
        assert not (fault.kind.hits_engine and fault.moment is Moment.PUT)
        assert not (fault.kind is Kind.SIGTERM and fault.moment is Moment.DRAIN)


def make_fault(n: int, moment: Moment) -> Fault:
    return Fault(n, Kind.SIGKILL, moment, 0.5, 0.5)


def test_a_fault_whose_moment_never_came_is_the_next_to_fall() -> None:
    deck = Deck([make_fault(1, Moment.START), make_fault(2, Moment.MIDDLE)])
    first = deck.take([Moment.START, Moment.MIDDLE])
    assert first
    deck.put_back(first)
    assert deck.take([Moment.START, Moment.MIDDLE]) == first
    assert len(deck) == 1


def test_an_attempt_that_has_begun_draws_no_fault_of_the_start() -> None:
    deck = Deck([make_fault(1, Moment.START), make_fault(2, Moment.MIDDLE)])
    later = deck.take([Moment.MIDDLE])
    assert later
    assert later.n == 2
    assert deck.take([Moment.MIDDLE]) is None


def test_a_kind_that_would_only_cost_time_is_left_to_another_attempt() -> None:
    deck = Deck([make_fault(1, Moment.MIDDLE)])
    assert deck.take([Moment.MIDDLE], but=[Kind.SIGKILL]) is None
    assert deck.take([Moment.MIDDLE])


def test_after_the_campaign_was_told_to_stop_no_fault_comes_back() -> None:
    deck = Deck([make_fault(1, Moment.MIDDLE), make_fault(2, Moment.MIDDLE)])
    drawn = deck.take([Moment.MIDDLE])
    assert drawn
    deck.clear()
    deck.put_back(drawn)
    assert len(deck) == 0
