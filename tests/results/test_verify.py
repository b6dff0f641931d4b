"""Verify counts again from the files, and names each difference by its shard or file."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from shardline.errors import JobNotReady
from shardline.layout import published, published_file
from shardline.plan import Plan
from shardline.results.verify import verify_job
from shardline.shards.manifest import read_shards
from shardline.store import Store
from tests.results.answers import NOW, answer_all, error, publish_unseen, result, small_job, text_of

ROWS: list[Any] = [{"id": f"d{i}", "text": f"text {i % 7}"} for i in range(12)] + ["no json"]


@pytest.fixture
def job(tmp_path: Path) -> tuple[Store, Plan]:
    store, plan = small_job(tmp_path, ROWS)
    answer_all(store, plan, lambda r: error(r) if text_of(r) == "text 1" else result(r))
    publish_unseen(store, plan)
    return store, plan


def shard(store: Store, plan: Plan, number: int = 0) -> str:
    return read_shards(store, plan)[number].shard


def file_of(store: Store, plan: Plan, number: int = 0) -> Path:
    assert store.folder is not None
    name = published_file(plan.job_id, plan.partition, number)
    return store.folder / published(plan.job_file.table) / name


def differences(store: Store, plan: Plan) -> str:
    found = verify_job(store, plan)
    assert not found.holds
    return "\n".join(found.differences)


@pytest.mark.protocol(6)
def test_a_good_job_holds_and_its_rows_are_counted(job: tuple[Store, Plan]) -> None:
    store, plan = job
    found = verify_job(store, plan)
    assert found.holds
    assert found.published_rows == 10
    assert found.current == plan.job_id
    law = found.law
    assert (law.rows_read, law.documents, law.rejected) == (13, 12, 1)
    assert (law.results, law.duplicates, law.dead_letters) == (6, 5, 1)


def test_a_line_lost_from_results_names_the_shard(job: tuple[Store, Plan]) -> None:
    store, plan = job
    path = plan.layout.results(shard(store, plan))
    store.write(path, store.read(path).split(b"\n", 1)[1])
    assert f"shard {shard(store, plan)}: 1 requests without a line" in differences(store, plan)


def test_results_that_are_gone_name_the_shard(job: tuple[Store, Plan]) -> None:
    store, plan = job
    store.delete(plan.layout.results(shard(store, plan, 1)))
    assert f"shard {shard(store, plan, 1)}: jobs/" in differences(store, plan)


def test_a_shard_file_with_another_byte_names_the_shard(job: tuple[Store, Plan]) -> None:
    store, plan = job
    path = plan.layout.shard(shard(store, plan))
    store.write(path, store.read(path).replace(b"text", b"tent", 1))
    assert "has not the sha256 of the manifest" in differences(store, plan)


def test_a_ledger_that_is_no_parquet_names_the_shard(job: tuple[Store, Plan]) -> None:
    store, plan = job
    store.write(plan.layout.ledger(shard(store, plan)), b"nonsense")
    assert f"shard {shard(store, plan)}: " in differences(store, plan)


def test_a_rejected_row_lost_names_its_file(job: tuple[Store, Plan]) -> None:
    store, plan = job
    store.delete(plan.layout.rejected(0))
    assert "rejected/00000.jsonl: is gone, with 1 rejected rows" in differences(store, plan)


def test_a_published_row_lost_names_the_shard(job: tuple[Store, Plan]) -> None:
    store, plan = job
    path = file_of(store, plan)
    rows = pq.ParquetFile(path).read()
    pq.write_table(rows.slice(1), path)
    found = differences(store, plan)
    assert f"shard {shard(store, plan)}: 1 rows not published" in found
    assert "10 rows were published, the files hold 9" in found


def test_a_published_file_swapped_for_another_shards_is_found(job: tuple[Store, Plan]) -> None:
    store, plan = job
    file_of(store, plan).write_bytes(file_of(store, plan, 1).read_bytes())
    found = differences(store, plan)
    assert "rows not published" in found
    assert "rows too many" in found


def test_a_published_file_that_is_gone_names_the_shard(job: tuple[Store, Plan]) -> None:
    store, plan = job
    file_of(store, plan).unlink()
    assert f"shard {shard(store, plan)}: published/" in differences(store, plan)


def test_a_superseded_job_still_holds_and_says_who_is_current(
    job: tuple[Store, Plan], tmp_path: Path
) -> None:
    store, plan = job
    _, later = small_job(tmp_path, ROWS, store=store, rerun=1, now=NOW + timedelta(hours=1))
    answer_all(store, later)
    publish_unseen(store, later)
    found = verify_job(store, plan)
    assert found.holds
    assert (found.current, found.published_rows) == (later.job_id, 0)
    assert verify_job(store, later).published_rows == 12


def test_a_job_that_never_ran_names_its_shards(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    found = differences(store, plan)
    assert all(entry.shard in found for entry in read_shards(store, plan))
    store.delete(plan.layout.manifest)
    with pytest.raises(JobNotReady):
        verify_job(store, plan)
