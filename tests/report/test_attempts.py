"""What all attempts did together."""

from __future__ import annotations

from typing import Any

import pytest

from shardline.reasons import AttemptEnd
from shardline.report.attempts import fold_attempts
from shardline.rows import Attempt, Counts, EngineMetrics, Seconds


def attempt(name: str, start: str, stop: str | None = None, **changes: Any) -> Attempt:
    values: dict[str, Any] = {
        "shard": "s0", "generation": 1, "host": "h", "pid": 1,
        "started_at": f"2026-11-28T12:{start}.000+00:00",
        "ended_at": f"2026-11-28T12:{stop}.000+00:00" if stop else None,
        "end": AttemptEnd.DONE if stop else None,
    }  # fmt: skip
    return Attempt(attempt=name, **(values | changes))


def test_a_job_without_attempts_has_no_figures() -> None:
    assert fold_attempts([], {}) is None


def test_seconds_and_counts_are_summed_over_attempts() -> None:
    work = fold_attempts(
        [
            attempt("a", "00:00", "00:50", seconds=Seconds(start=10, useful=40), counts=Counts(results=70, dead=2, completion_tokens=500)),
            attempt("b", "01:00", "01:40", seconds=Seconds(start=8, useful=30, drain=2), counts=Counts(results=28, completion_tokens=300), end=AttemptEnd.DRAINED),
        ],
        {},
    )  # fmt: skip
    assert work is not None
    assert (work.seconds.start, work.seconds.useful, work.seconds.drain) == (18, 70, 2)
    assert (work.rows, work.by_end) == (100, {"done": 1, "drained": 1})
    assert (work.rows_per_s, work.completion_tokens_per_s) == (1.0, 8.0)


def test_an_attempt_that_vanished_is_drawn_until_it_spoke_last() -> None:
    attempts = [attempt("a", "00:00"), attempt("b", "00:30")]
    work = fold_attempts(attempts, {"a": "2026-11-28T12:00:20.000+00:00"})
    assert work is not None
    assert work.by_end == {"vanished": 2}
    assert [(s.start_s, s.end_s) for s in work.spans] == [(0, 20), (30, None)]


def test_means_are_weighted_by_the_time_an_attempt_worked() -> None:
    work = fold_attempts(
        [
            attempt("a", "00:00", "00:30", seconds=Seconds(useful=30), metrics=EngineMetrics(mean_running=60, max_num_seqs=64)),
            attempt("b", "00:30", "00:40", seconds=Seconds(useful=10), metrics=EngineMetrics(mean_running=20, preemptions=3)),
            attempt("c", "00:40", "00:41"),
        ],
        {},
    )  # fmt: skip
    assert work is not None
    assert work.metrics.mean_running == pytest.approx(50)
    assert (work.metrics.max_num_seqs, work.metrics.preemptions) == (64, 3)
    assert work.metrics.prefix_cache_hits is None


def test_bad_ends_are_grouped_by_what_the_workers_said() -> None:
    bad: dict[str, Any] = {"end": AttemptEnd.ENGINE_FAILED, "message": "no GPU"}
    work = fold_attempts(
        [
            attempt("a", "00:00", "00:10", **bad),
            attempt("b", "00:10", "00:20", **bad),
            attempt("c", "00:20", exit_code=-9),
            attempt("d", "00:30", "00:40", end=AttemptEnd.DRAINED, message="told to stop"),
        ],
        {},
    )
    assert work is not None
    assert [(t.end, t.message, t.attempts, t.attempt) for t in work.troubles] == [
        ("engine_failed", "no GPU", 2, "b"),
        ("vanished", "Killed by signal 9.", 1, "c"),
    ]
