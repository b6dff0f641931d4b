"""The job id: it changes with whatever changes a document, a request or an answer, and only then."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardline.errors import JobNotReady
from shardline.plan import InputFile, Plan, encode_plan, make_job_id, read_plan, timestamp
from tests.factories import make_job, make_store

FOLDER = Path("/data")
FILE = InputFile(uri="file:///data/corpus/a.jsonl", source="a.jsonl", size_bytes=10, version="1")


def job_id(
    partition: str | None = None,
    commit: str = "abc",
    inputs: tuple[InputFile, ...] = (FILE,),
    **job: Any,
) -> str:
    return make_job_id(make_job(FOLDER, **job), partition, commit, list(inputs))


@pytest.mark.protocol(1)
def test_the_same_job_has_the_same_id_for_ever() -> None:
    assert job_id() == job_id() == "test-job-all-909379bb"


@pytest.mark.protocol(1)
@pytest.mark.parametrize(
    "changes",
    [
        {"limits__max_rejected": 0.5},
        {"limits__max_dead": 0.5},
        {"limits__partial": True},
        {"owner": "somebody"},
        {"schedule": None},
        {"report__samples": 5},
        {"local__engine_args": {"max_model_len": 10}},
        {"local__revision": "a-branch-of-the-same-commit"},
    ],
)
def test_what_changes_no_answer_keeps_the_id(changes: dict[str, Any]) -> None:
    assert job_id(**changes) == job_id()


@pytest.mark.protocol(1)
@pytest.mark.parametrize(
    "changes",
    [
        {"rerun": 1},
        {"corpus__id": "id"},
        {"corpus__carry": ["queue"]},
        {"corpus__dedupe": "none"},
        {"corpus__sample": {"rows": 10}},
        {"corpus__uri": "/data/other"},
        {"messages": [{"role": "user", "content": "{{ text }}."}]},
        {"messages": [{"role": "system", "content": "{{ text }}"}]},
        {"parameters": {"max_tokens": 9, "temperature": 0}},
        {"parameters": {"logit_bias": {5: 1}}},
        {"output": {"choices": ["a", "b"]}},
        {"output": {"text": True, "truncated": "dead_letter"}},
        {"shards__max_requests": 10},
        {"limits__max_text_bytes": 10},
        {"local__model": "another"},
        {"commit": "def"},
        {"partition": "2026-01-01"},
        {"inputs": ()},
        {"inputs": (msgspec.structs.replace(FILE, version="2"),)},
        {"inputs": (msgspec.structs.replace(FILE, size_bytes=11),)},
        {"inputs": (msgspec.structs.replace(FILE, uri="file:///data/corpus/b.jsonl"),)},
        {"inputs": (FILE, FILE)},
    ],
)
def test_what_may_change_an_answer_changes_the_id(changes: dict[str, Any]) -> None:
    assert job_id(**changes) != job_id()


@pytest.mark.protocol(1)
@pytest.mark.parametrize("kind", ["completion", "embedding"])
def test_what_a_job_of_another_kind_asks_changes_the_id(kind: str) -> None:
    asks = {"completion": "prompt", "embedding": "input"}[kind]
    found = {job_id(), job_id(kind=kind), job_id(**{"kind": kind, asks: "{{ text }}."})}
    found.add(job_id(kind=kind, parameters={"user": "somebody"}))
    assert len(found) == 4


def test_order_of_fields_does_not_matter() -> None:
    one = job_id(parameters={"max_tokens": 9, "temperature": 0})
    assert one == job_id(parameters={"temperature": 0, "max_tokens": 9})


@pytest.mark.protocol(1, 24)
@pytest.mark.parametrize("partition", [None, "2026-11-28", "a.b_c", "UPPER", "x"])
def test_an_id_is_a_slug(partition: str | None) -> None:
    assert re.fullmatch(r"[a-z0-9](-?[a-z0-9]+)*", job_id(partition))


@pytest.mark.protocol(1)
def test_partitions_whose_slugs_are_equal_are_other_jobs() -> None:
    assert len({job_id(p) for p in ("a.b", "a_b", "a-b", "A-b")}) == 4


def make_plan() -> Plan:
    job = make_job(FOLDER, corpus__carry=["queue"], parameters={"logit_bias": {5: 1}})
    return Plan(
        job_id="test-job-all-00000000",
        job=job.model_dump(mode="json"),
        partition=None,
        planned_at=timestamp(datetime(2026, 1, 1, tzinfo=UTC)),
        model_commit="abc",
        inputs=[FILE],
        skipped=[],
        splits=[(0, 1)],
        bounds=[(10, "80000000")],
        bucket_sets=[(0, 2)],
        version="0.1.0",
    )


def test_a_plan_comes_back_from_the_store_as_it_was(tmp_path: Path) -> None:
    store, plan = make_store(tmp_path), make_plan()
    store.put_same(plan.layout.plan, encode_plan(plan))
    found = read_plan(store, plan.job_id)
    assert found == plan
    assert found.job_file == plan.job_file
    assert found.buckets == 2


def test_a_job_that_was_not_planned_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobNotReady, match="job nothing: not planned below"):
        read_plan(make_store(tmp_path), "nothing")


def test_a_moment_is_written_in_utc_to_the_millisecond() -> None:
    east = timezone(timedelta(hours=2))
    assert timestamp(datetime(2026, 1, 1, 1, tzinfo=east)) == "2025-12-31T23:00:00.000+00:00"
