"""Publishing: once, by the right job, in one commit, and readable by everybody's reader."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pytest
from deltalake import DeltaTable

from shardline.errors import (
    JobFileError,
    JobNotReady,
    LawBroken,
    StoreRefused,
    Superseded,
    WrongInput,
)
from shardline.layout import published
from shardline.plan import Plan
from shardline.results.files import law_of, published_files
from shardline.results.merge import merge_shards, read_merge_report
from shardline.results.publish import current_publication, history, publish_results
from shardline.results.settle import settle_shards
from shardline.store import Store, open_store
from tests.results.answers import NOW, answer_all, error, publish_unseen, result, small_job

ROWS: list[Any] = [{"id": f"d{i}", "text": f"text {i % 6}"} for i in range(9)]
LATER = NOW + timedelta(hours=1)


def job(
    folder: Path,
    *,
    store: Store | None = None,
    rerun: int = 0,
    answer: Any = result,
    rows: list[Any] | None = None,
    **overrides: Any,
) -> tuple[Store, Plan]:
    """A job that is merged, and not published."""
    store, plan = small_job(folder, rows or ROWS, store=store, rerun=rerun, **overrides)
    answer_all(store, plan, answer)
    settle_shards(store, plan, generation=1)
    merge_shards(store, plan)
    store.put_once(plan.layout.validation, b"{}")
    return store, plan


def table_of(store: Store, table: str = "test-job") -> DeltaTable:
    return DeltaTable(store.uri_of(published(table)))


def jobs_seen(store: Store) -> dict[str, int]:
    """Rows by job, as a Delta reader sees them."""
    return dict(table_of(store).to_pandas()["job_id"].value_counts())


@pytest.mark.protocol(18)
def test_a_published_job_is_current_with_its_law_and_links(tmp_path: Path) -> None:
    store, plan = job(tmp_path)
    published_now = publish_results(store, plan)
    assert published_now.is_new
    current = current_publication(store, "test-job", None)
    assert current == published_now
    assert (current.job_id, current.partition, current.n) == (plan.job_id, "all", 1)
    assert (current.rows, current.version) == (9, 1)
    assert law_of(store, "test-job", None) == read_merge_report(store, plan).law
    assert current.links["report"].endswith(f"{plan.job_id}/report.html")
    assert jobs_seen(store) == {plan.job_id: 9}


@pytest.mark.protocol(18)
def test_nothing_is_seen_before_publish(tmp_path: Path) -> None:
    store, _ = job(tmp_path)
    assert current_publication(store, "test-job", None) is None
    assert history(store, "test-job") == []
    with pytest.raises(WrongInput, match="nothing is published"):
        published_files(store, "test-job")


@pytest.mark.protocol(18)
def test_publishing_again_says_already_and_commits_nothing(tmp_path: Path) -> None:
    store, plan = job(tmp_path)
    first = publish_results(store, plan)
    for force in (False, True):
        again = publish_results(store, plan, force=force)
        assert not again.is_new
        assert again.version == first.version
    assert table_of(store).version() == 1


@pytest.mark.protocol(18)
def test_a_later_job_replaces_the_partition_and_time_travel_still_reads_the_first(
    tmp_path: Path,
) -> None:
    store, first = job(tmp_path)
    publish_results(store, first)
    _, second = job(tmp_path, store=store, rerun=1, now=LATER)
    publish_results(store, second)
    assert jobs_seen(store) == {second.job_id: 9}
    old = pl.read_delta(store.uri_of(published("test-job")), version=1)
    assert set(old["job_id"]) == {first.job_id}
    assert len(published_files(store, "test-job", version=1)) == len(
        published_files(store, "test-job")
    )
    assert [p.job_id for p in history(store, "test-job")] == [second.job_id, first.job_id]


@pytest.mark.protocol(18)
def test_a_replaced_job_says_superseded_and_comes_back_only_by_force(tmp_path: Path) -> None:
    store, first = job(tmp_path)
    publish_results(store, first)
    _, second = job(tmp_path, store=store, rerun=1, now=LATER)
    publish_results(store, second)
    with pytest.raises(Superseded, match=f"superseded by {second.job_id}; use rerun .* --force"):
        publish_results(store, first)
    back = publish_results(store, first, force=True)
    assert (back.n, back.is_new) == (2, True)
    assert jobs_seen(store) == {first.job_id: 9}
    assert not publish_results(store, first, force=True).is_new
    with pytest.raises(Superseded):
        publish_results(store, second)


@pytest.mark.protocol(18)
def test_a_job_planned_before_the_current_one_is_refused(tmp_path: Path) -> None:
    store, early = job(tmp_path)
    _, late = job(tmp_path, store=store, rerun=1, now=LATER)
    publish_results(store, late)
    with pytest.raises(Superseded, match="planned later"):
        publish_results(store, early)
    assert publish_results(store, early, force=True).n == 1


@pytest.mark.protocol(18)
def test_partitions_do_not_touch_each_other(tmp_path: Path) -> None:
    store, one = job(tmp_path, partition="2026-11-28")
    _, two = job(tmp_path, store=store, partition="2026-11-29", now=LATER)
    publish_results(store, two)
    publish_results(store, one)
    assert jobs_seen(store) == {one.job_id: 9, two.job_id: 9}
    assert set(pl.read_delta(table_of(store))["dt"]) == {"2026-11-28", "2026-11-29"}
    files = published_files(store, "test-job", "2026-11-28")
    assert files
    assert all("dt=2026-11-28" in path for path in files)


def test_a_job_of_dead_letters_alone_publishes_an_empty_partition(tmp_path: Path) -> None:
    store, first = job(tmp_path)
    publish_results(store, first)
    _, dead = job(tmp_path, store=store, rerun=1, now=LATER, answer=error)
    publication = publish_results(store, dead)
    assert (publication.rows, publication.files) == (0, 0)
    assert published_files(store, "test-job") == []
    assert jobs_seen(store) == {}
    assert current_publication(store, "test-job", None) == publication
    assert not publish_results(store, dead).is_new


def test_an_empty_job_can_be_the_first(tmp_path: Path) -> None:
    store, dead = job(tmp_path, answer=error)
    assert publish_results(store, dead).rows == 0
    assert len(pl.read_delta(table_of(store))) == 0


@pytest.mark.protocol(18)
def test_a_restore_makes_the_older_job_current_again(tmp_path: Path) -> None:
    store, first = job(tmp_path)
    publish_results(store, first)
    _, second = job(tmp_path, store=store, rerun=1, now=LATER)
    publish_results(store, second)
    table_of(store).restore(1)
    current = current_publication(store, "test-job", None)
    assert current is not None
    assert current.job_id == first.job_id
    assert not publish_results(store, first).is_new
    with pytest.raises(Superseded, match=f"superseded by {first.job_id}"):
        publish_results(store, second)
    assert publish_results(store, second, force=True).n == 2
    assert jobs_seen(store) == {second.job_id: 9}
    table_of(store).restore(0)
    assert current_publication(store, "test-job", None) is None
    with pytest.raises(Superseded, match="rolled back"):
        publish_results(store, second)


@pytest.mark.protocol(18)
def test_an_added_column_extends_the_table_and_old_rows_have_null(tmp_path: Path) -> None:
    store, one = job(tmp_path, partition="2026-11-28")
    publish_results(store, one)
    rows = [row | {"queue": "q"} for row in ROWS]
    _, two = job(
        tmp_path, store=store, partition="2026-11-29", rows=rows, corpus__carry=["queue"], now=LATER
    )
    publish_results(store, two)
    frame = pl.read_delta(table_of(store))
    assert set(frame.filter(pl.col("dt") == "2026-11-28")["queue"]) == {None}
    assert set(frame.filter(pl.col("dt") == "2026-11-29")["queue"]) == {"q"}
    # and a job without the column does not take it away again
    _, three = job(tmp_path, store=store, partition="2026-11-30", now=LATER)
    publish_results(store, three)
    assert "queue" in pl.read_delta(table_of(store)).columns


def test_a_type_that_changed_since_the_plan_is_refused_at_publish(tmp_path: Path) -> None:
    one = [row | {"queue": "q"} for row in ROWS]
    two = [row | {"queue": True} for row in ROWS]
    store, text = job(tmp_path, rows=one, corpus__carry=["queue"])
    _, flag = job(tmp_path, store=store, rows=two, corpus__carry=["queue"], now=LATER)
    publish_results(store, text)
    with pytest.raises(JobFileError, match="queue: the published table holds string"):
        publish_results(store, flag)
    assert jobs_seen(store) == {text.job_id: 9}


def test_whole_numbers_may_become_doubles(tmp_path: Path) -> None:
    store, whole = job(
        tmp_path,
        rows=[row | {"score": 1} for row in ROWS],
        corpus__carry=["score"],
        partition="2026-11-28",
    )
    publish_results(store, whole)
    _, double = job(
        tmp_path,
        store=store,
        rows=[row | {"score": 1.5} for row in ROWS],
        corpus__carry=["score"],
        partition="2026-11-29",
        now=LATER,
    )
    publish_results(store, double)
    assert sorted(set(table_of(store).to_pandas()["score"])) == [1.0, 1.5]


def test_a_merged_file_that_is_gone_is_found_before_the_commit(tmp_path: Path) -> None:
    store, plan = job(tmp_path)
    path = f"{published('test-job')}/{read_merge_report(store, plan).files[0].path}"
    store.delete(path)
    with pytest.raises(LawBroken, match="is gone"):
        publish_results(store, plan)
    assert current_publication(store, "test-job", None) is None


@pytest.mark.protocol(18)
def test_a_job_that_was_not_validated_is_not_published(tmp_path: Path) -> None:
    store, plan = job(tmp_path)
    store.delete(plan.layout.validation)
    with pytest.raises(JobNotReady, match="not validated"):
        publish_results(store, plan)


def test_a_store_without_delta_is_refused_in_words(tmp_path: Path) -> None:
    store, plan = job(tmp_path)
    assert store.folder is not None
    memory = open_store("memory://")
    for path in store.folder.rglob("*"):
        if path.is_file():
            memory.put_once(path.relative_to(store.folder).as_posix(), path)
    with pytest.raises(StoreRefused, match="disk or s3:// only"):
        publish_results(memory, plan)


def test_no_such_version_is_told(tmp_path: Path) -> None:
    store, plan = job(tmp_path)
    publish_results(store, plan)
    with pytest.raises(StoreRefused, match="test-job"):
        published_files(store, "test-job", version=99)


@pytest.mark.protocol(18, 23)
def test_a_torn_commit_is_no_commit_and_the_retry_publishes(tmp_path: Path) -> None:
    """A publisher that died while it wrote the log leaves a file that is no version."""
    store, plan = job(tmp_path)
    publish_results(store, plan)
    assert store.folder is not None
    log_folder = store.folder / published("test-job") / "_delta_log"
    commit = log_folder / f"{1:020d}.json"
    commit.rename(log_folder / "_commit_0123.json.tmp")
    assert current_publication(store, "test-job", None) is None
    assert publish_results(store, plan).is_new
    assert jobs_seen(store) == {plan.job_id: 9}


@pytest.mark.protocol(18)
def test_every_reader_sees_only_current_rows_after_a_publish_again(tmp_path: Path) -> None:
    store, first = job(tmp_path)
    publish_results(store, first)
    _, second = job(
        tmp_path, store=store, rerun=1, now=LATER, answer=lambda r: result(r, "the second")
    )
    publish_results(store, second)
    files = published_files(store, "test-job")
    assert set(pd.concat(map(pd.read_parquet, files))["output"]) == {"the second"}
    assert set(pl.read_parquet(files, hive_partitioning=True)["output"]) == {"the second"}
    by_duckdb = duckdb.from_parquet(files, hive_partitioning=True)  # type: ignore[arg-type]
    assert by_duckdb.aggregate("count(*), min(output), max(dt)").fetchall() == [
        (9, "the second", "all")
    ]
    assert set(table_of(store).to_pandas()["output"]) == {"the second"}
    assert len(table_of(store).to_pandas()) == 9


def test_a_publish_in_a_folder_with_odd_characters(tmp_path: Path) -> None:
    folder = tmp_path / "a [b] c é"
    store, plan = job(folder)
    publish_results(store, plan)
    assert jobs_seen(store) == {plan.job_id: 9}
    assert all(Path(path).is_file() for path in published_files(store, "test-job"))


def test_a_folder_that_delta_cannot_write_to_is_refused_in_words(tmp_path: Path) -> None:
    store, plan = job(tmp_path / "50%20")
    with pytest.raises(StoreRefused, match="a path with a %"):
        publish_results(store, plan)


def test_publishing_twice_after_the_table_was_copied_says_already(tmp_path: Path) -> None:
    store, plan = job(tmp_path)
    publish_results(store, plan)
    shutil.copytree(tmp_path / "root", tmp_path / "copy")
    assert not publish_results(open_store(str(tmp_path / "copy")), plan).is_new


def test_a_sample_is_published_beside_the_whole(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS, corpus__sample={"rows": 4, "seed": 0})
    answer_all(store, plan)
    publication = publish_unseen(store, plan)
    assert (publication.table, publication.law.left_out) == ("test-job__sample", 5)
    assert len(pl.read_delta(table_of(store, "test-job__sample"))) == 4
