from shardline.worker.clock import StallTimer


def test_it_rings_when_nothing_ends_and_the_beat_stands_still() -> None:
    timer = StallTimer(10)
    timer.restart(0)
    assert not timer.has_rung(9.9, beat=0)
    assert timer.has_rung(10, beat=0)


def test_a_token_of_a_long_answer_keeps_it_quiet() -> None:
    timer = StallTimer(10)
    timer.restart(0)
    assert not timer.has_rung(9, beat=1)
    assert not timer.has_rung(18, beat=1)
    assert timer.has_rung(19, beat=1)


def test_an_ended_row_keeps_it_quiet() -> None:
    timer = StallTimer(10)
    timer.restart(0)
    timer.restart(9)
    assert not timer.has_rung(18, beat=0)
