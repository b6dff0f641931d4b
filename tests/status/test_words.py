"""Numbers as people read them."""

from __future__ import annotations

import pytest

from shardline.status.words import bytes_text, count_text, duration_text, rate_text, share_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (8.44, "8.4 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (380, "6 min 20 s"),
        (11_100, "3 h 05 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_share_is_never_rounded_to_nothing_or_to_all() -> None:
    assert share_text(0, 10) == "0 %"
    assert share_text(1, 100_000) == "<0.1 %"
    assert share_text(99_999, 100_000) == ">99.9 %"
    assert share_text(1, 3) == "33.3 %"
    assert share_text(10, 10) == "100 %"
    assert share_text(0, 0) == "–"


def test_rates_sizes_and_counts_read_well() -> None:
    assert [rate_text(r) for r in (0.314, 9.82, 1240.4)] == ["0.31", "9.8", "1,240"]
    assert [bytes_text(b) for b in (912, 1_440_000, 200_000_000)] == ["912 B", "1.4 MB", "200 MB"]
    assert [count_text(n, "shard") for n in (0, 1, 2000)] == ["0 shards", "1 shard", "2,000 shards"]
