"""From runs to figures: medians, ranges, and ratios of runs that stood side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Run:
    """One contender over all rows once."""

    rows: int
    cpu_s: float
    """Of its front process alone."""
    wall_s: float
    peak_rss_mb: float
    """The most that its front process held while it ran."""

    @property
    def ms_per_request(self) -> float:
        return 1000 * self.cpu_s / self.rows


Runs = Mapping[str, Sequence[Run]]
"""Runs by contender, in the order in which they were made."""


def ratios(runs: Runs, of: str, to: str, figure: str) -> list[float]:
    """`figure` of one contender over that of the other, each pair of the same round."""
    pairs = zip(runs[of], runs[to], strict=True)
    return [getattr(one, figure) / getattr(other, figure) for one, other in pairs]


def key_figures(runs: Runs) -> dict[str, float]:
    """The figures that have targets, as medians over the rounds."""
    figures = {
        "front_end_ms_per_request": median(run.ms_per_request for run in runs["worker"]),
        "run_batch_ms_per_request": median(run.ms_per_request for run in runs["run_batch"]),
        "front_end_vs_run_batch": median(ratios(runs, "worker", "run_batch", "cpu_s")),
        "wall_vs_run_batch": median(ratios(runs, "run_batch", "worker", "wall_s")),
    }
    return {name: round(value, 3) for name, value in figures.items()}


def describe(name: str, runs: Sequence[Run]) -> str:
    """One line for people: medians with their ranges."""
    ms = _spread([run.ms_per_request for run in runs], 2)
    rate = _spread([run.rows / run.wall_s for run in runs], 0)
    return f"{name:<10} {ms} CPU ms a request, {rate} requests/s ({len(runs)} runs)"


def same_answers(ours: Mapping[str, str], theirs: Mapping[str, str]) -> int:
    """How many rows have the same text in both."""
    return sum(theirs.get(custom_id) == text for custom_id, text in ours.items())


def _spread(values: Iterable[float], digits: int) -> str:
    found = sorted(values)
    low, middle, high = (f"{v:.{digits}f}" for v in (found[0], median(found), found[-1]))
    return f"{middle} ({low}-{high})"
