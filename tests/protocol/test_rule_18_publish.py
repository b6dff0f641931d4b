"""PROTOCOL 18, 23: one commit, checked on the version that it lands on, and on disk before it is told."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from shardline.errors import LawBroken, Superseded
from shardline.layout import published
from shardline.plan import Plan
from shardline.results import publish as publishing
from shardline.results.merge import merge_shards
from shardline.results.outcome import check_outcome
from shardline.results.publish import current_publication, history, publish_results
from shardline.results.settle import settle_shards
from shardline.results.verify import verify_job
from shardline.store import Store
from tests.results.answers import NOW, answer_all, small_job

pytestmark = pytest.mark.protocol(18)

ROWS: list[Any] = [{"id": f"d{i}", "text": f"text {i % 6}"} for i in range(9)]


def merged(folder: Path, store: Store | None, rerun: int = 0, hours: int = 0) -> tuple[Store, Plan]:
    """A job that waits to be published, planned `hours` after the first."""
    now = NOW + timedelta(hours=hours)
    store, plan = small_job(folder, ROWS, store=store, rerun=rerun, now=now)
    answer_all(store, plan)
    settle_shards(store, plan, generation=1)
    merge_shards(store, plan)
    store.put_once(plan.layout.validation, b"{}")
    return store, plan


def table_of(store: Store) -> DeltaTable:
    return DeltaTable(store.uri_of(published("test-job")))


def slip_in(monkeypatch: pytest.MonkeyPatch, store: Store, other: Plan) -> None:
    """Another job commits between our look at the table and our commit."""
    commit = publishing.replace_partition

    def late(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(publishing, "replace_partition", commit)
        publish_results(store, other)
        commit(*arguments, **named)

    monkeypatch.setattr(publishing, "replace_partition", late)


def test_after_a_conflict_every_check_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, early = merged(tmp_path, None)
    _, late = merged(tmp_path, store, rerun=1, hours=1)
    slip_in(monkeypatch, store, late)
    with pytest.raises(Superseded, match="planned later"):
        publish_results(store, early)
    assert [p.job_id for p in history(store, "test-job")] == [late.job_id]


def test_after_a_conflict_with_an_earlier_job_the_later_one_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, early = merged(tmp_path, None)
    _, late = merged(tmp_path, store, rerun=1, hours=1)
    slip_in(monkeypatch, store, early)
    assert publish_results(store, late).is_new
    assert [p.job_id for p in history(store, "test-job")] == [late.job_id, early.job_id]
    assert set(table_of(store).to_pandas()["job_id"]) == {late.job_id}


def test_the_same_job_that_slips_in_is_found_and_not_committed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, plan = merged(tmp_path, None)
    slip_in(monkeypatch, store, plan)
    assert not publish_results(store, plan).is_new
    assert len(history(store, "test-job")) == 1


def test_transactions_are_numbered_from_one_and_forced_ones_go_on(tmp_path: Path) -> None:
    store, first = merged(tmp_path, None)
    _, second = merged(tmp_path, store, rerun=1, hours=1)
    publish_results(store, first)
    publish_results(store, second)
    publish_results(store, first, force=True)
    table = table_of(store)
    assert table.transaction_version(first.job_id) == 2
    assert table.transaction_version(second.job_id) == 1


def test_the_commit_itself_says_what_was_published(tmp_path: Path) -> None:
    store, plan = merged(tmp_path, None)
    publish_results(store, plan)
    record = json.loads(table_of(store).history(1)[0]["shardline"])
    assert {"job_id", "planned_at", "parent", "law", "links"} <= set(record)
    assert set(record["links"]) == {"dead_letters", "rejected", "report"}
    assert record["law"]["rows_read"] == 9


def test_a_vacuum_takes_what_was_replaced_and_nothing_that_is_current(tmp_path: Path) -> None:
    store, first = merged(tmp_path, None)
    _, second = merged(tmp_path, store, rerun=1, hours=1)
    publish_results(store, first)
    publish_results(store, second)
    taken = table_of(store).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert taken
    assert all(first.job_id in path for path in taken)
    assert check_outcome(store, second).publication.rows == 9
    assert verify_job(store, second).holds


def test_files_that_a_vacuum_took_before_their_publish_are_merged_again(tmp_path: Path) -> None:
    store, first = merged(tmp_path, None)
    publish_results(store, first)
    _, second = merged(tmp_path, store, rerun=1, hours=1)
    report = merge_shards(store, second)
    table_of(store).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    with pytest.raises(LawBroken, match="is gone"):
        publish_results(store, second)
    assert merge_shards(store, second) == report
    assert publish_results(store, second).rows == 9
    assert verify_job(store, second).holds


def test_done_is_said_only_while_the_job_is_current(tmp_path: Path) -> None:
    store, first = merged(tmp_path, None)
    _, second = merged(tmp_path, store, rerun=1, hours=1)
    publish_results(store, first)
    assert not publish_results(store, first).is_new
    publish_results(store, second)
    with pytest.raises(Superseded, match="use rerun"):
        publish_results(store, first)
    current = current_publication(store, "test-job", None)
    assert current is not None
    assert current.job_id == second.job_id


@pytest.mark.protocol(23)
@pytest.mark.parametrize("how", ["new", "found"])
def test_every_commit_that_leads_to_what_is_told_is_on_disk_before_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The table's own first commit too, and one whose publisher died before it could see to it."""
    store, plan = merged(tmp_path, None)
    assert store.folder is not None
    table = store.folder / published("test-job")
    if how == "found":
        publish_results(store, plan)
    synced: set[Path] = set()
    fsync = os.fsync

    def see(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", see)
    assert publish_results(store, plan).is_new is (how == "new")
    commits = set((table / "_delta_log").glob("*.json"))
    assert len(commits) == 2
    assert commits | {table / "_delta_log", table, table.parent} <= synced
