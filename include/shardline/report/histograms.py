"""Histograms with round edges, exact from values or spread from what the shards say of themselves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from shardline.report.figures import Histogram
from shardline.rows import ShardEntry

_BINS = 24
_STEPS = (1, 2, 5, 10)


def make_histogram(counts: Iterable[tuple[int, int]]) -> Histogram | None:
    """From (value, how often); None without any value."""
    known = [(value, n) for value, n in counts if n]
    if not known:
        return None
    edges = round_edges(min(v for v, _ in known), max(v for v, _ in known))
    step, first = edges[1] - edges[0], edges[0]
    bins = [0] * (len(edges) - 1)
    for value, n in known:
        bins[int((value - first) // step)] += n
    return Histogram(edges, bins)


def scaled_histogram(counts: Iterable[tuple[float, int]]) -> Histogram | None:
    """The same for numbers with a fraction: bins of a hundredth of their size, or wider."""
    known = [(value, n) for value, n in counts if n]
    most = max((value for value, _ in known), default=0.0)
    unit = 10.0 ** (math.floor(math.log10(most)) - 2) if most > 0 else 1.0
    found = make_histogram((round(value / unit), n) for value, n in known)
    if found is None:
        return None
    return Histogram([edge * unit for edge in found.edges], found.counts)


def spread_histogram(shards: Sequence[ShardEntry]) -> Histogram | None:
    """From the shortest and longest request of each shard, its requests spread evenly between.

    Shards are sorted by length over the whole job, so these ranges are narrow and hardly overlap.
    """
    if not shards:
        return None
    edges = round_edges(min(s.min_length for s in shards), max(s.max_length for s in shards))
    bins = [0.0] * (len(edges) - 1)
    for s in shards:
        low, high = float(s.min_length), float(max(s.max_length, s.min_length + 1))
        for i in range(len(bins)):
            overlap = min(high, edges[i + 1]) - max(low, edges[i])
            bins[i] += s.requests * max(0.0, overlap) / (high - low)
    return Histogram(edges, _whole(bins, sum(s.requests for s in shards)), is_exact=False)


def round_edges(low: int, high: int) -> list[float]:
    """Edges at multiples of 1, 2 or 5 times a power of ten, at most about 24 bins."""
    raw = max((high - low) / _BINS, 1)
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * s for s in _STEPS if power * s >= raw)
    first = low // step * step
    bins = int((high - first) // step) + 1
    return [float(first + i * step) for i in range(bins + 1)]


def _whole(amounts: list[float], total: int) -> list[int]:
    """Whole numbers of the same sum: the largest remainders are rounded up."""
    whole = [int(a) for a in amounts]
    order = sorted(range(len(amounts)), key=lambda i: (whole[i] - amounts[i], i))
    for i in order[: max(0, total - sum(whole))]:
        whole[i] += 1
    return whole
