"""A later start of the same job may change what does not decide documents, requests or answers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shardline.corpus.plan_job import plan_job
from shardline.plan import Plan, read_plan
from shardline.settings import Settings
from tests.factories import make_job, make_rows, make_store, write_corpus

NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)


def plan_with(folder: Path, **overrides: Any) -> Plan:
    job = make_job(folder, **overrides)
    store = make_store(folder)
    return plan_job(job, store=store, settings=Settings(), partition=None, now=NOW)


def test_a_mended_engine_argument_and_limit_reach_whoever_reads_the_plan(tmp_path: Path) -> None:
    write_corpus(tmp_path, make_rows(3))
    first = plan_with(tmp_path, local__engine_args={"max_nm_seqs": 4}, limits__max_dead=0)
    mended = plan_with(tmp_path, local__engine_args={"max_num_seqs": 4}, limits__max_dead=0.5)
    assert mended.job_id == first.job_id
    found = read_plan(make_store(tmp_path), first.job_id)
    assert found == mended
    assert found.job_file.engine.engine_args == {"max_num_seqs": 4}
    assert found.job_file.limits.max_dead == 0.5


def test_the_plan_itself_stays_as_it_was_put(tmp_path: Path) -> None:
    write_corpus(tmp_path, make_rows(3))
    first = plan_with(tmp_path)
    store = make_store(tmp_path)
    before = store.read(first.layout.plan)
    plan_with(tmp_path, owner="somebody-else", report={"samples": 3})
    assert store.read(first.layout.plan) == before
    assert store.exists(first.layout.settings)
    assert read_plan(store, first.job_id).job_file.owner == "somebody-else"


def test_a_start_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    write_corpus(tmp_path, make_rows(3))
    first = plan_with(tmp_path)
    assert plan_with(tmp_path) == first
    assert not make_store(tmp_path).exists(first.layout.settings)
