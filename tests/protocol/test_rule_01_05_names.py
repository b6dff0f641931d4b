"""PROTOCOL 1-6: what a job is, what its objects are called, and a prepare that stops anywhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from shardline.corpus.ids import check_ids
from shardline.corpus.plan_job import plan_job
from shardline.corpus.scan import scan_corpus
from shardline.errors import StoreUnavailable
from shardline.job import JobFile
from shardline.job_reader import parse_job
from shardline.plan import Plan, make_job_id
from shardline.results.merge import merge_shards
from shardline.results.settle import settle_shards
from shardline.rows import Manifest
from shardline.settings import Settings
from shardline.shards.cut import cut_shards
from shardline.shards.manifest import read_manifest, read_shards, write_manifest
from shardline.store import Store, open_store
from tests.factories import make_job, write_corpus
from tests.results.answers import NOW, answer_all, error, lines_of, requests_of, small_job
from tests.results.scripted_store import ScriptedStore, snapshot

# two files, a duplicate across them, an id conflict, a bad row: every kind of object is written
FIRST: list[Any] = [{"id": f"d{i}", "text": f"text {i}"} for i in range(6)]
SECOND: list[Any] = [
    {"id": "d0", "text": "another text"},
    {"id": "d9", "text": "text 3"},
    {"id": 1},
]


def make(folder: Path) -> JobFile:
    write_corpus(folder, FIRST, "a.jsonl")
    write_corpus(folder, SECOND, "b.jsonl")
    return make_job(folder, corpus__id="id", shards__max_requests=3)


def plan_of(store: Store, job: JobFile) -> Plan:
    return plan_job(job, store=store, settings=Settings(), partition=None, now=NOW)


def prepare_job(store: Store, job: JobFile) -> Manifest:
    plan = plan_of(store, job)
    for split in range(len(plan.splits)):
        scan_corpus(store, plan, split)
    check_ids(store, plan)
    for bucket_set in range(len(plan.bucket_sets)):
        cut_shards(store, plan, bucket_set)
    return write_manifest(store, plan)


# 1: what the id hashes


def job_of(folder: Path, **fields: Any) -> str:
    given: dict[str, Any] = {
        "name": "test-job",
        "corpus": {"uri": str(folder / "corpus")},
        "messages": [{"role": "user", "content": "{{ text }}"}],
        "local": {"model": "stub", "engine": "stub"},
        **fields,
    }
    return make_job_id(parse_job(given, folder=folder), None, "stub", [])


@pytest.mark.protocol(1)
def test_a_file_that_the_job_file_names_changes_the_id_by_its_content(tmp_path: Path) -> None:
    prompt, schema = tmp_path / "prompt.md", tmp_path / "schema.json"
    fields = {
        "messages": [
            {"role": "system", "content": {"file": "prompt.md"}},
            {"role": "user", "content": "{{ text }}"},
        ],
        "output": {"json_schema": {"file": "schema.json"}},
    }
    ids = []
    for said, kind in [("be brief", "string"), ("be brief", "integer"), ("be long", "integer")]:
        prompt.write_text(said)
        properties = {"a": {"type": kind}}
        schema.write_text(
            json.dumps({"type": "object", "properties": properties, "required": ["a"]})
        )
        ids.append(job_of(tmp_path, **fields))
    assert len(set(ids)) == 3


ASKS = {"messages", "prompt", "input"}  # whichever the kind has
HASHED = {"name", "kind", "corpus", "parameters", "output", "shards", "rerun", *ASKS}
IN_PARTS = {
    "limits": "max_text_bytes alone",
    "local": "model, engine and what decides a prompt; not engine_args",
    "gpu": "as local",
    "hosted": "still to come; its model will be",
    "run_on": "says which of these is read",
}
NOT_HASHED = {"owner", "schedule", "report"}


@pytest.mark.protocol(1)
def test_every_field_of_a_job_file_is_known_to_be_hashed_or_not() -> None:
    """A new field must be sorted in here, and into make_job_id, by whoever adds it."""
    assert set(JobFile.model_fields) == HASHED | set(IN_PARTS) | NOT_HASHED


@pytest.mark.protocol(1, 8)
def test_who_loses_the_put_of_the_plan_uses_the_plan_of_the_winner(tmp_path: Path) -> None:
    job = make(tmp_path)
    root = tmp_path / "root"
    scripted = ScriptedStore(root)

    def first_comes_another(path: str) -> None:
        scripted.before_create = None
        later = NOW.replace(year=NOW.year + 1)
        winner = plan_job(
            job, store=open_store(str(root)), settings=Settings(), partition=None, now=later
        )
        planned.append(winner)

    planned: list[Plan] = []
    scripted.before_create = first_comes_another
    assert plan_of(scripted, job) == planned[0]


# 3: planned names, never a listing


@pytest.mark.protocol(3, 7)
def test_an_object_that_nobody_planned_is_no_shard(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, FIRST)
    answer_all(store, plan)
    foreign = "shard-00077-000"
    first = read_shards(store, plan)[0].shard
    for path in (plan.layout.results(foreign), plan.layout.shard(foreign)):
        store.put_same(path, lines_of([error(r) for r in requests_of(store, plan, first)]))
    store.put_same(plan.layout.sidecar(foreign), store.read(plan.layout.sidecar(first)))
    settlement = settle_shards(store, plan, generation=1)
    assert settlement.dead_letters == {}
    assert merge_shards(store, plan).rows == len(FIRST)


@pytest.mark.protocol(3)
def test_names_sort_shards_by_bucket_and_then_by_place(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "root"))
    job = make(tmp_path)
    prepare_job(store, job)
    entries = read_shards(store, plan_of(store, job))
    assert len(entries) > 1
    assert [entry.shard for entry in entries] == sorted(entry.shard for entry in entries)
    assert [entry.max_length for entry in entries] == sorted(entry.max_length for entry in entries)


# 5, 6: a scan that is done again, or was planned in other pieces


@pytest.mark.protocol(5, 6)
def test_what_another_plan_of_the_splits_left_is_never_counted(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "root"))
    job = make(tmp_path)
    plan = plan_of(store, job)
    scan_corpus(store, plan, 0)
    for path in (plan.layout.scan_report(7), plan.layout.rejected(7), plan.layout.spill(7)):
        store.put_same(path, store.read(path.replace("00007", "00000")))
    manifest = prepare_job(store, job)
    assert (manifest.rows_read, manifest.documents, manifest.rejected) == (9, 7, 2)
    assert (manifest.requests, manifest.duplicates) == (6, 1)


@pytest.mark.protocol(5)
def test_a_row_rejected_for_its_id_is_nobodys_original(tmp_path: Path) -> None:
    """Were de-duplication first, the duplicate of a rejected row would be lost with it."""
    rows = [
        {"id": "a", "text": "one"},
        {"id": "a", "text": "two"},
        {"id": "b", "text": "two"},
    ]
    store, plan = small_job(tmp_path, rows)
    manifest = read_manifest(store, plan)
    assert (manifest.documents, manifest.rejected, manifest.duplicates) == (2, 1, 0)
    answer_all(store, plan)
    settle_shards(store, plan, generation=1)
    assert merge_shards(store, plan).rows == 2


@pytest.mark.protocol(5, 8)
@pytest.mark.parametrize("after", [False, True], ids=["put fails", "reply lost"])
def test_a_prepare_that_stops_at_any_write_ends_alike_when_run_again(
    tmp_path: Path, after: bool
) -> None:
    job = make(tmp_path)
    whole_store = ScriptedStore(tmp_path / "whole")
    prepare_job(whole_store, job)
    whole, writes = snapshot(tmp_path / "whole"), len(whole_store.written)
    assert writes > 10
    for fail_at in range(writes):
        folder = tmp_path / f"run-{fail_at}"
        with pytest.raises(StoreUnavailable):
            prepare_job(ScriptedStore(folder, fail_at, after=after), job)
        prepare_job(ScriptedStore(folder), job)
        assert snapshot(folder) == whole
        shutil.rmtree(folder)
