"""The manifest: totals that add up, and a list of shards that nobody changes later."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shardline.errors import JobNotReady, LawBroken
from shardline.rows import ShardEntry
from shardline.shards.manifest import (
    read_manifest,
    read_shard_name,
    read_shards,
    write_manifest,
)
from shardline.store import Store
from tests.results.answers import Plan, small_job

ROWS: list[dict[str, str] | str] = [{"id": f"d{i}", "text": f"text {i % 9}"} for i in range(20)]


def unwrite(store: Store, *paths: str) -> None:
    for path in paths:
        store.delete(path)


def rewrite_entries(store: Store, plan: Plan, change: dict[str, int]) -> None:
    path = plan.layout.bucket_report(0)
    first, *rest = msgspec.json.decode(store.read(path), type=list[ShardEntry])
    store.write(path, msgspec.json.encode([msgspec.structs.replace(first, **change), *rest]))
    unwrite(store, plan.layout.manifest, plan.layout.shard_table)


@pytest.mark.protocol(3, 6)
def test_the_totals_are_those_of_the_shards_and_the_scan(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, [*ROWS, "no json", "{"])
    manifest, entries = read_manifest(store, plan), read_shards(store, plan)
    assert (manifest.rows_read, manifest.documents, manifest.rejected) == (22, 20, 2)
    assert (manifest.requests, manifest.duplicates) == (9, 11)
    assert manifest.shards == len(entries)
    assert manifest.documents == sum(entry.documents for entry in entries)
    assert manifest.size_bytes == sum(entry.size_bytes for entry in entries)
    assert [entry.shard for entry in entries] == sorted(entry.shard for entry in entries)


def test_writing_it_again_changes_nothing(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    before = store.read(plan.layout.manifest), store.read(plan.layout.shard_table)
    unwrite(store, plan.layout.manifest)
    write_manifest(store, plan)
    write_manifest(store, plan)
    assert (store.read(plan.layout.manifest), store.read(plan.layout.shard_table)) == before


def test_a_bucket_set_that_is_not_cut_is_named(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    unwrite(store, plan.layout.manifest, plan.layout.bucket_report(0))
    with pytest.raises(JobNotReady, match="bucket set 0"):
        write_manifest(store, plan)


@pytest.mark.protocol(6)
def test_a_document_lost_between_scan_and_cut_stops_the_job_before_a_model_runs(
    tmp_path: Path,
) -> None:
    store, plan = small_job(tmp_path, ROWS)
    documents = msgspec.json.decode(store.read(plan.layout.bucket_report(0)))[0]["documents"]
    rewrite_entries(store, plan, {"documents": documents - 1})
    with pytest.raises(LawBroken, match=r"rows read 20 != documents 19 .*difference \+1"):
        write_manifest(store, plan)


@pytest.mark.protocol(3)
def test_a_list_of_shards_that_was_changed_is_refused(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    store.write(plan.layout.shard_table, store.read(plan.layout.shard_table) + b"x")
    with pytest.raises(LawBroken, match="sha256"):
        read_shards(store, plan)


def test_a_number_names_the_shard_that_the_list_has_there(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    names = [entry.shard for entry in read_shards(store, plan)]
    assert len(names) == 3
    assert [read_shard_name(store, plan, n) for n in range(3)] == names
    with pytest.raises(IndexError, match="number 3, it has 3"):
        read_shard_name(store, plan, 3)


@pytest.mark.protocol(3)
def test_a_name_is_not_taken_from_a_list_that_was_changed(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    store.write(plan.layout.shard_table, store.read(plan.layout.shard_table) + b"x")
    with pytest.raises(LawBroken, match="sha256"):
        read_shard_name(store, plan, 0)


def test_before_the_cut_there_is_no_manifest(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    unwrite(store, plan.layout.manifest)
    with pytest.raises(JobNotReady, match="not cut"):
        read_manifest(store, plan)
