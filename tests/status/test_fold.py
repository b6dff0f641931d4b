"""The fold: what a job is doing, from values alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from shardline.reasons import ShardState
from shardline.rows import Progress, ShardEntry
from shardline.status.fold import fold_status

NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)


def entry(shard: str, requests: int = 100) -> ShardEntry:
    return ShardEntry(shard, requests, requests, 1000, "0" * 64, 10, 20)


def progress(shard: str, **changes: Any) -> Progress:
    values: dict[str, Any] = {
        "shard": shard,
        "attempt": "a1",
        "generation": 1,
        "at": (NOW - timedelta(seconds=changes.pop("age_s", 10))).isoformat(),
        "state": "running",
        "rows_total": 100,
        "rows_done": 40,
        "rows_dead": 0,
        "rows_per_s": 2.0,
        "prompt_tokens_per_s": 100.0,
        "completion_tokens_per_s": 20.0,
    }
    return Progress(**(values | changes))


def test_the_line_says_shards_rows_speed_and_time_left() -> None:
    shards = [entry(f"s{i}", 500) for i in range(10)]
    words = [progress("s3", rows_done=240, rows_total=500, rows_per_s=9.8)]
    status = fold_status("x", shards, {"s0", "s1"}, words, NOW)
    assert status.line() == (
        "job x: 2 of 10 shards done, 1 running, 1,240 of 5,000 rows, 9.8 rows/s, eta 6 min 24 s"
    )


def test_a_done_shard_counts_all_its_rows_whatever_its_worker_said_last() -> None:
    status = fold_status("x", [entry("s0")], {"s0"}, [progress("s0", rows_done=7)], NOW)
    assert (status.rows_done, status.rows_total, status.rows_per_s) == (100, 100, 0)
    assert status.is_done
    assert status.eta_s is None
    assert status.running == []


def test_a_worker_that_fell_silent_adds_rows_and_no_speed() -> None:
    status = fold_status("x", [entry("s0")], set(), [progress("s0", age_s=301)], NOW)
    assert (status.rows_done, status.rows_per_s, status.eta_s) == (40, 0, None)
    assert status.shards[ShardState.FAILED] == 1
    assert "1 stopped" in status.line()


def test_a_worker_that_ended_is_not_live() -> None:
    status = fold_status("x", [entry("s0")], set(), [progress("s0", state="ended")], NOW)
    assert status.shards[ShardState.RUNNING] == 0
    assert status.rows_per_s == 0


def test_two_attempts_of_one_shard_never_count_a_row_twice_but_both_are_fast() -> None:
    words = [
        progress("s0", attempt="a1", rows_done=60),
        progress("s0", attempt="a2", rows_done=55, rows_per_s=3.0),
    ]
    status = fold_status("x", [entry("s0")], set(), words, NOW)
    assert (status.rows_done, status.rows_per_s) == (60, 5.0)
    assert [w.attempt for w in status.running] == ["a1", "a2"]
    assert status.shards[ShardState.RUNNING] == 1


def test_a_worker_that_claims_more_rows_than_its_shard_has_is_not_believed() -> None:
    status = fold_status("x", [entry("s0", 10)], set(), [progress("s0", rows_done=99)], NOW)
    assert status.rows_done == 10


def test_every_shard_is_in_exactly_one_state() -> None:
    shards = [entry(f"s{i}") for i in range(5)]
    words = [progress("s1"), progress("s2", state="ended"), progress("s3", state="ended")]
    status = fold_status("x", shards, {"s0"}, words, NOW, dead={"s3"})
    assert status.shards == {"waiting": 1, "running": 1, "done": 1, "failed": 1, "dead": 1}
    assert status.shards_total == 5


def test_progress_of_a_shard_that_is_not_in_the_manifest_counts_for_nothing() -> None:
    status = fold_status("x", [entry("s0")], set(), [progress("other")], NOW)
    assert (status.rows_done, status.running) == (0, [])


def test_a_job_without_a_manifest_is_being_prepared() -> None:
    status = fold_status("x", None, set(), [], NOW)
    assert not status.is_done
    assert status.line() == "job x: being prepared, no shards yet"


def test_a_clock_that_is_ahead_of_ours_makes_no_negative_age() -> None:
    status = fold_status("x", [entry("s0")], set(), [progress("s0", age_s=-60)], NOW)
    assert status.running[0].age_s == 0


def test_dead_letters_are_said() -> None:
    words = [progress("s0", rows_dead=3), progress("s1", rows_dead=1)]
    status = fold_status("x", [entry("s0"), entry("s1")], {"s0"}, words, NOW)
    assert status.rows_dead == 4
    assert "4 dead letters" in status.line()


def test_an_engine_that_starts_is_said_to_start() -> None:
    words = [
        progress("s0", state="starting", rows_done=0, rows_per_s=0.0),
        progress("s1", attempt="a1", state="starting", rows_per_s=0.0),
        progress("s1", attempt="a2"),
    ]
    status = fold_status("x", [entry("s0"), entry("s1")], set(), words, NOW)
    assert status.shards[ShardState.RUNNING] == 2
    assert "0 of 2 shards done, 1 running, 1 starting, 40 of 200 rows" in status.line()
