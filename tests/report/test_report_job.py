"""report_job at every point where a job may have stopped: it says what is there, and no more."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shardline.corpus.ids import check_ids
from shardline.corpus.plan_job import plan_job
from shardline.corpus.scan import scan_corpus
from shardline.plan import Plan
from shardline.report.report_job import report_job
from shardline.report.samples import document_text
from shardline.results.merge import merge_shards
from shardline.results.settle import settle_shards
from shardline.runners.shard import infer_shard
from shardline.settings import Settings
from shardline.shards.cut import cut_shards
from shardline.shards.manifest import read_shards, write_manifest
from shardline.store import Store
from tests.factories import make_job, make_rows, make_store, write_corpus

NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)


def plan_reviews(folder: Path, **overrides: Any) -> tuple[Store, Plan]:
    """A planned job of 30 documents, two of them dead letters, and a rejected row."""
    rows = [row | {"label": "a" if i % 2 else "b"} for i, row in enumerate(make_rows(30))]
    for i in (3, 4):
        rows[i]["text"] += " [stub:error=too_long]"
    write_corpus(folder, [*rows, {"id": "none"}])
    values: dict[str, Any] = {
        "corpus__id": "id",
        "corpus__carry": ["label"],
        "output": {"choices": ["a", "b"]},
        "shards__max_requests": 10,
        "report": {"samples": 6, "compare_with": "label"},
    }
    job, store = make_job(folder, **(values | overrides)), make_store(folder)
    plan = plan_job(job, store=store, settings=Settings(), partition=None, now=NOW)
    return store, plan


def prepare(store: Store, plan: Plan) -> None:
    for split in range(len(plan.splits)):
        scan_corpus(store, plan, split)
    check_ids(store, plan)
    for bucket_set in range(len(plan.bucket_sets)):
        cut_shards(store, plan, bucket_set)
    write_manifest(store, plan)


def infer(store: Store, plan: Plan, shards: int) -> None:
    for entry in read_shards(store, plan)[:shards]:
        assert infer_shard(store, plan, entry.shard).is_done


def test_a_planned_job_has_a_report_of_its_inputs(tmp_path: Path) -> None:
    store, plan = plan_reviews(tmp_path)
    report = report_job(store, plan, NOW)
    assert report.state == "preparing"
    assert report.input.files == 1
    assert (report.law, report.shards, report.work, report.dead_total) == (None, None, None, None)
    assert "shardline resume" in report.next_step


def test_a_prepared_job_has_shards_lengths_and_rejected_rows(tmp_path: Path) -> None:
    store, plan = plan_reviews(tmp_path)
    prepare(store, plan)
    report = report_job(store, plan, NOW)
    assert report.state == "waiting"
    assert report.shards is not None
    assert (report.shards.shards, report.shards.done, report.shards.requests) == (3, 0, 30)
    assert report.shards.lengths is not None
    assert report.shards.lengths.is_exact
    assert sum(report.shards.lengths.counts) == 30
    (rejected,) = report.rejected
    assert (rejected.reason, rejected.count, rejected.examples[0].row) == ("no_text", 1, 31)


@pytest.mark.slow
def test_a_job_that_stopped_half_way_shows_what_it_did(tmp_path: Path) -> None:
    store, plan = plan_reviews(tmp_path)
    prepare(store, plan)
    infer(store, plan, 2)
    report = report_job(store, plan, NOW)
    assert report.state == "stopped"
    assert "2 of 3 shards done, 20 of 30 rows" in report.headline
    assert report.work is not None
    assert report.work.by_end == {"done": 2}
    assert 0 < len(report.samples) <= 6
    assert report.law is None


@pytest.mark.slow
def test_a_merged_job_has_every_figure_and_its_report_is_the_same_each_time(tmp_path: Path) -> None:
    store, plan = plan_reviews(tmp_path)
    prepare(store, plan)
    infer(store, plan, 3)
    settle_shards(store, plan, generation=1)
    merge_shards(store, plan)
    report = report_job(store, plan, NOW)
    page = store.read(plan.layout.report_html)
    assert report.state == "merged"
    assert (
        report.headline
        == "28 rows merged, not published: 28 results and 0 duplicates; 2 dead letters."
    )
    (dead,) = report.dead
    assert (dead.reason, dead.count, {e.document_id for e in dead.examples}) == (
        "too_long",
        2,
        {"d3", "d4"},
    )
    assert report.tokens is not None
    assert report.tokens.results == 28
    assert len(report.samples) == 6
    assert all(s.output in ("a", "b") and s.text.startswith("document") for s in report.samples)
    assert {s.label for s in report.samples} <= {"a", "b"}
    assert report.agreement is not None
    assert report.agreement.rows == 28
    assert sum(a.rows for a in report.answers) == 28
    assert report_job(store, plan, NOW) == report
    assert store.read(plan.layout.report_html) == page
    assert json.loads(store.read(plan.layout.report_json))["law"]["results"] == 28


@pytest.mark.slow
def test_a_text_job_shows_samples_and_no_answers(tmp_path: Path) -> None:
    store, plan = plan_reviews(tmp_path, output={"text": True}, report={"samples": 2})
    prepare(store, plan)
    infer(store, plan, 3)
    settle_shards(store, plan, generation=1)
    merge_shards(store, plan)
    report = report_job(store, plan, NOW)
    assert (report.answers, report.agreement, len(report.samples)) == ([], None, 2)


@pytest.mark.slow
def test_a_schema_s_answers_are_shown_as_json(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"stars": {"type": "integer"}},
        "required": ["stars"],
        "additionalProperties": False,
    }
    store, plan = plan_reviews(tmp_path, output={"json_schema": schema})
    prepare(store, plan)
    infer(store, plan, 3)
    settle_shards(store, plan, generation=1)
    merge_shards(store, plan)
    report = report_job(store, plan, NOW)
    assert report.agreement is None
    assert all(set(json.loads(s.output)) == {"stars"} for s in report.samples)


def test_a_sample_shows_the_document_and_not_what_all_messages_share(tmp_path: Path) -> None:
    job = make_job(
        tmp_path,
        messages=[
            {"role": "system", "content": "Examples."},
            {"role": "user", "content": "Review: good\nReview: {{ a }}/{{ b }}\nSentiment:"},
        ],
    )
    assert document_text(job, "Review: good\nReview: one/two\nSentiment:") == "one/two"
    bare = make_job(tmp_path)
    assert document_text(bare, "as it is") == "as it is"
