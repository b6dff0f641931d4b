"""The plan: the same job for the same input, ranges that miss nothing, one winner."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.corpus.plan_job import MAX_TASKS, plan_job, plan_ranges
from shardline.errors import CorpusError, JobFileError, NotAllowed
from shardline.plan import Plan
from shardline.settings import Settings
from tests.factories import make_job, make_rows, make_store, write_corpus

NOW = datetime(2026, 11, 28, tzinfo=UTC)


def plan(folder: Path, partition: str | None = None, **overrides: Any) -> Plan:
    now = overrides.pop("now", NOW)
    settings = overrides.pop("settings", Settings())
    job = make_job(folder, **overrides)
    return plan_job(job, store=make_store(folder), settings=settings, partition=partition, now=now)


@pytest.mark.protocol(1)
def test_planning_again_finds_the_plan_that_is_there(tmp_path: Path) -> None:
    write_corpus(tmp_path, make_rows(3))
    first = plan(tmp_path)
    again = plan(tmp_path, now=NOW + timedelta(days=1))
    assert again == first
    assert first.job_id.startswith("test-job-all-")
    assert (first.splits, first.bounds, first.bucket_sets) == ([(0, 1)], [], [(0, 1)])


@pytest.mark.protocol(1)
def test_another_file_or_other_content_is_another_job(tmp_path: Path) -> None:
    path = write_corpus(tmp_path, make_rows(3))
    ids = {plan(tmp_path).job_id}
    os.utime(path, ns=(0, 1))
    ids.add(plan(tmp_path).job_id)
    write_corpus(tmp_path, make_rows(1), "part-1.jsonl")
    ids.add(plan(tmp_path).job_id)
    ids.add(plan(tmp_path, rerun=1).job_id)
    assert len(ids) == 4


def test_a_hidden_file_changes_nothing_and_is_in_the_plan(tmp_path: Path) -> None:
    write_corpus(tmp_path, make_rows(3))
    job_id = plan(tmp_path).job_id
    write_corpus(tmp_path, [], "_SUCCESS")
    assert plan(tmp_path).job_id == job_id
    assert [f.source for f in plan(tmp_path, rerun=1).skipped] == ["_SUCCESS"]


@pytest.mark.protocol(1, 8)
def test_two_that_plan_at_once_use_the_plan_of_the_winner(tmp_path: Path) -> None:
    write_corpus(tmp_path, make_rows(3))
    moments = [NOW + timedelta(seconds=n) for n in range(8)]
    with ThreadPoolExecutor(8) as racers:
        plans = list(racers.map(lambda now: plan(tmp_path, now=now), moments))
    assert all(found == plans[0] for found in plans)


def test_a_partition_is_filled_in_and_named(tmp_path: Path) -> None:
    write_corpus(tmp_path, make_rows(1), "dt=2026-11-28/a.jsonl")
    uri = f"{tmp_path}/corpus/dt={{{{ partition }}}}"
    found = plan(tmp_path, "2026-11-28", corpus__uri=uri)
    assert found.partition == "2026-11-28"
    assert found.job_id.startswith("test-job-2026-11-28-")
    with pytest.raises(JobFileError, match=r"corpus\.uri"):
        plan(tmp_path, corpus__uri=uri)


@pytest.mark.protocol(24)
@pytest.mark.parametrize("partition", ["all", "ALL", "", "a/b", "..", "a b", "-x", "x" * 61, "a\n"])
def test_a_partition_is_a_name_of_its_own(tmp_path: Path, partition: str) -> None:
    write_corpus(tmp_path, make_rows(1))
    with pytest.raises(JobFileError, match="partition"):
        plan(tmp_path, partition)


def test_all_files_that_cannot_be_used_are_named_at_once(tmp_path: Path) -> None:
    write_corpus(tmp_path, make_rows(1))
    write_corpus(tmp_path, [], "notes.txt")
    write_corpus(tmp_path, [], "bad\nname.jsonl")
    with pytest.raises(CorpusError) as caught:
        plan(tmp_path)
    assert [(p.source, p.reason) for p in caught.value.problems] == [
        ("bad\nname.jsonl", "bad_name"),
        ("notes.txt", "unknown_format"),
    ]
    assert "\n" not in str(caught.value)


@pytest.mark.protocol(24)
def test_a_corpus_outside_the_settings_prefixes_is_refused(tmp_path: Path) -> None:
    write_corpus(tmp_path, make_rows(1))
    with pytest.raises(NotAllowed):
        plan(tmp_path, settings=Settings(corpus_prefixes=("/somewhere/else",)))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200), st.integers(1, 50))
def test_ranges_cover_all_work_once_and_are_balanced(work: list[int], most: int) -> None:
    ranges = plan_ranges(work, most)
    assert len(ranges) <= most
    assert [n for first, last in ranges for n in range(first, last)] == list(range(len(work)))
    assert all(first < last for first, last in ranges)
    heaviest = max(sum(work[first:last]) for first, last in ranges)
    assert heaviest <= 2 * (sum(work) / most + max(work))


def test_equal_work_is_cut_into_equal_ranges() -> None:
    assert plan_ranges([1] * 4, 4) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert plan_ranges([0, 0, 0], 2)[-1][1] == 3
    assert len(plan_ranges([5] * 5_000, MAX_TASKS)) == MAX_TASKS
