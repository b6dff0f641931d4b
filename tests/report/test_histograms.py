"""Histograms: nothing falls out, edges are round."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from shardline.report.histograms import make_histogram, round_edges, spread_histogram
from shardline.rows import ShardEntry

_LENGTHS = st.integers(0, 10**9)


@given(_LENGTHS, _LENGTHS)
def test_edges_hold_all_values_in_few_bins_of_a_round_width(a: int, b: int) -> None:
    low, high = sorted((a, b))
    edges = round_edges(low, high)
    assert edges[0] <= low
    assert edges[-1] > high
    assert 2 <= len(edges) <= 27
    step = edges[1] - edges[0]
    assert step / 10 ** math.floor(math.log10(step)) in (1, 2, 5)


@given(st.lists(st.tuples(_LENGTHS, st.integers(0, 1000))))
def test_every_value_is_in_exactly_one_bin(counts: list[tuple[int, int]]) -> None:
    histogram = make_histogram(counts)
    assert (histogram is None) == (not any(n for _, n in counts))
    if histogram is not None:
        assert sum(histogram.counts) == sum(n for _, n in counts)


@given(st.lists(st.tuples(_LENGTHS, _LENGTHS, st.integers(1, 50_000)), min_size=1, max_size=20))
def test_a_spread_histogram_has_every_request(shards: list[tuple[int, int, int]]) -> None:
    entries = [
        ShardEntry(f"s{i}", n, n, 1, "", min(a, b), max(a, b)) for i, (a, b, n) in enumerate(shards)
    ]
    histogram = spread_histogram(entries)
    assert histogram is not None
    assert sum(histogram.counts) == sum(n for _, _, n in shards)
    assert not histogram.is_exact
