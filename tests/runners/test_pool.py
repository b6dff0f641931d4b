"""A pool of Airflow that has not the size of the setting is found by who is in it."""

from __future__ import annotations

import pytest

from shardline.runners.pool import PoolWatch


def lines(looks: list[tuple[int, int]], slots: int = 8) -> list[str]:
    watch = PoolWatch("gpu", slots)
    return [line for look in looks if (line := watch.look(*look))]


@pytest.mark.parametrize(
    "looks",
    [
        [(8, 100)] * 20,
        [(3, 0)] * 20,  # the end of a job
        [(7, 10), (8, 10)] * 10,  # a slot is free for a moment
    ],
)
def test_a_pool_of_the_same_size_is_not_spoken_of(looks: list[tuple[int, int]]) -> None:
    assert lines(looks) == []


def test_a_larger_pool_is_told_once() -> None:
    (line,) = lines([(8, 5), (9, 5), (10, 5)])
    assert "larger, or does not include deferred" in line


def test_a_smaller_pool_is_told_when_it_stays_so() -> None:
    assert lines([(4, 5)] * 4) == []
    (line,) = lines([(4, 5)] * 9)
    assert "smaller" in line
