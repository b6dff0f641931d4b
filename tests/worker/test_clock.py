from collections.abc import Iterator

import pytest

from shardline.rows import Seconds
from shardline.worker.clock import Clock


def make_clock(*moments: float) -> tuple[Clock, Seconds]:
    ticks: Iterator[float] = iter(moments)
    seconds = Seconds()
    return Clock(seconds, lambda: next(ticks)), seconds


def test_every_second_has_one_label() -> None:
    clock, seconds = make_clock(0, 5, 65, 80)
    clock.switch("useful")
    clock.switch("tail")
    clock.switch("tail")
    assert (seconds.start, seconds.useful, seconds.tail) == (5, 60, 15)


def test_a_stall_is_taken_from_what_looked_useful() -> None:
    clock, seconds = make_clock(0, 0, 100)
    clock.switch("useful")
    clock.move("stall", 30)
    assert (seconds.useful, seconds.stall) == (70, 30)


@pytest.mark.parametrize("label", ["useful", "tail", "restart"])
def test_nothing_comes_after_the_drain(label: str) -> None:
    clock, seconds = make_clock(0, 1, 2, 3)
    clock.switch("drain")
    clock.switch(label)  # type: ignore[arg-type]
    clock.switch("tail")
    assert seconds.drain == 2
