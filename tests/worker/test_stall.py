from shardline.worker.clock import StallTimer


def has_rung_at(timer: StallTimer, *moments: float, beat: int = 0) -> bool:
    """Whether it has rung at the last of these moments, at each of which it is looked at."""
    return [timer.has_rung(moment, beat) for moment in moments][-1]


def test_it_rings_when_nothing_ends_and_the_beat_stands_still() -> None:
    timer = StallTimer(10)
    timer.restart(0)
    assert not has_rung_at(timer, *range(10), 9.9)
    assert timer.has_rung(10, beat=0)


def test_a_token_of_a_long_answer_keeps_it_quiet() -> None:
    timer = StallTimer(10)
    timer.restart(0)
    assert not has_rung_at(timer, *range(10), beat=1)
    assert not has_rung_at(timer, *range(10, 20), beat=2)
    assert has_rung_at(timer, *range(20, 30), beat=2)


def test_an_ended_row_keeps_it_quiet() -> None:
    timer = StallTimer(10)
    timer.restart(0)
    assert not has_rung_at(timer, *range(10))
    timer.restart(9)
    assert not has_rung_at(timer, *range(10, 19))
    assert timer.has_rung(19, beat=0)


def test_a_machine_that_stood_still_is_no_stall() -> None:
    timer = StallTimer(10)
    timer.restart(0)
    assert not has_rung_at(timer, 1, 2, 1_000, 1_001)
    assert has_rung_at(timer, *range(1_002, 1_007))


def test_one_that_is_looked_at_late_each_time_rings_nevertheless() -> None:
    timer = StallTimer(10)
    timer.restart(0)
    assert not has_rung_at(timer, 60, 120, 180)
    assert timer.has_rung(240, beat=0)
