"""Merge joins every document with its result, and refuses whatever does not add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardline.errors import JobNotReady, LawBroken
from shardline.plan import Plan
from shardline.results.columns import model_label
from shardline.results.merge import merge_shards
from shardline.results.settle import settle_shards
from shardline.shards.manifest import read_manifest, read_shards
from shardline.store import Store
from tests.results.answers import (
    answer_all,
    error,
    lines_of,
    result,
    small_job,
    text_of,
)
from tests.results.scripted_store import snapshot

ROWS: list[Any] = [
    {"id": f"d{i}", "text": f"text {i % 10}", "queue": f"q{i}"} for i in range(25)
] + ["not json"]


def merged_rows(store: Store, plan: Plan) -> list[dict[str, Any]]:
    assert store.folder is not None
    table = store.folder / "published" / plan.job_file.table
    files = sorted(table.rglob("*.parquet"))
    return [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]


def answered(tmp_path: Path, answer: Any = result, **overrides: Any) -> tuple[Store, Plan]:
    store, plan = small_job(tmp_path, ROWS, **({"corpus__carry": ["queue"]} | overrides))
    answer_all(store, plan, answer)
    settle_shards(store, plan, generation=1)
    return store, plan


def test_every_document_gets_the_answer_to_its_text(tmp_path: Path) -> None:
    store, plan = answered(tmp_path)
    report = merge_shards(store, plan)
    rows = {row["document_id"]: row for row in merged_rows(store, plan)}
    assert len(rows) == 25 == report.rows
    for given in ROWS[:25]:
        row = rows[given["id"]]
        assert row["output"] == f"answer to {given['text']}"
        assert row["queue"] == given["queue"]
        assert (row["prompt_tokens"], row["completion_tokens"]) == (5, 3)
        assert (row["finish_reason"], row["model"]) == ("stop", "stub")
        assert (row["source"], row["job_id"]) == ("part-0.jsonl", plan.job_id)
        assert (row["duplicate_of"] is None) == (int(given["id"][1:]) < 10)


@pytest.mark.protocol(6)
def test_the_law_is_counted_for_each_shard_and_the_job(tmp_path: Path) -> None:
    store, plan = answered(tmp_path, lambda r: error(r) if text_of(r) == "text 3" else result(r))
    report = merge_shards(store, plan)
    law = report.law
    assert (law.rows_read, law.documents, law.rejected, law.left_out) == (26, 25, 1, 0)
    assert (law.results, law.duplicates, law.dead_letters) == (9, 15, 1)
    assert report.dead_letters == {"engine_error": 1}
    assert report.dead_documents == 3  # d3, d13 and d23
    assert report.rows == 22
    assert sum(shard.law.documents for shard in report.shards) == 25
    assert all(not shard.law.differences() for shard in report.shards)


@pytest.mark.protocol(17)
def test_duplicates_of_a_dead_letter_are_not_published(tmp_path: Path) -> None:
    store, plan = answered(tmp_path, lambda r: error(r) if text_of(r) == "text 3" else result(r))
    merge_shards(store, plan)
    texts = {int(row["document_id"][1:]) % 10 for row in merged_rows(store, plan)}
    assert 3 not in texts


def test_the_columns_stand_in_their_order_without_the_partition(tmp_path: Path) -> None:
    store, plan = answered(tmp_path)
    report = merge_shards(store, plan)
    assert store.folder is not None
    path = store.folder / "published" / "test-job" / report.files[0].path
    assert pq.ParquetFile(path).schema_arrow.names == [
        "document_id",
        "queue",
        "output",
        "model",
        "finish_reason",
        "prompt_tokens",
        "completion_tokens",
        "fingerprint",
        "duplicate_of",
        "source",
        "row",
        "job_id",
    ]


def test_choices_are_words_and_schemas_are_structs(tmp_path: Path) -> None:
    choices = {"choices": ["bug", "other"]}
    store, plan = answered(tmp_path / "c", lambda r: result(r, '{"choice":"bug"}'), output=choices)
    merge_shards(store, plan)
    assert {row["output"] for row in merged_rows(store, plan)} == {"bug"}
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "tags": {"type": "array", "items": {}}},
    }
    store, plan = answered(
        tmp_path / "s",
        lambda r: result(r, '{"n":12345678901234567890123,"tags":["a",{"b":1}]}'),
        output={"json_schema": schema},
    )
    report = merge_shards(store, plan)
    assert merged_rows(store, plan)[0]["output"] == {"n": None, "tags": ["a", '{"b":1}']}
    assert report.lost_values == 10  # one for each request


def test_a_shard_of_dead_letters_alone_has_no_file(tmp_path: Path) -> None:
    store, plan = answered(tmp_path, error)
    report = merge_shards(store, plan)
    assert report.files == []
    assert report.rows == 0
    assert merged_rows(store, plan) == []


@pytest.mark.protocol(18)
def test_merging_again_writes_the_same_bytes(tmp_path: Path) -> None:
    store, plan = answered(tmp_path)
    merge_shards(store, plan)
    assert store.folder is not None
    before = snapshot(store.folder)
    for name in before:
        if "/merged/" in name or name.endswith("merge.json"):
            store.delete(name)
    merge_shards(store, plan)
    merge_shards(store, plan)
    assert snapshot(store.folder) == before


def test_before_it_is_settled_a_job_is_not_merged(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    with pytest.raises(JobNotReady, match="not settled"):
        merge_shards(store, plan)


# every way in which the law can break is refused, by shard or file, and nothing is merged to publish


def first_shard(store: Store, plan: Plan) -> str:
    return read_shards(store, plan)[0].shard


def edit_results(store: Store, plan: Plan, change: Any) -> str:
    shard = first_shard(store, plan)
    path = plan.layout.results(shard)
    store.write(path, b"".join(change(store.read(path).splitlines(keepends=True))))
    return shard


def refuse(store: Store, plan: Plan, *says: str) -> None:
    with pytest.raises(LawBroken) as refused:
        merge_shards(store, plan)
    for part in says:
        assert part in str(refused.value)
    assert not store.exists(plan.layout.merge_report)


@pytest.mark.protocol(6)
def test_a_missing_line_is_refused(tmp_path: Path) -> None:
    store, plan = answered(tmp_path)
    shard = edit_results(store, plan, lambda lines: lines[1:])
    refuse(store, plan, f"shard {shard}: 1 requests without a line in results")


@pytest.mark.protocol(6)
def test_a_doubled_line_is_refused(tmp_path: Path) -> None:
    store, plan = answered(tmp_path)
    shard = edit_results(store, plan, lambda lines: [*lines, lines[0]])
    refuse(store, plan, f"shard {shard}: 1 doubled lines in results")


@pytest.mark.protocol(6)
def test_a_line_that_nobody_asked_for_is_refused(tmp_path: Path) -> None:
    store, plan = answered(tmp_path)
    foreign = lines_of([msgspec.structs.replace(error_line(), custom_id="f" * 32)])
    shard = edit_results(store, plan, lambda lines: [*lines, foreign])
    refuse(store, plan, f"shard {shard}: 1 lines in results that nobody asked for, first ffff")


def error_line() -> Any:
    from shardline.rows import ErrorBody, Result

    return Result("x", "x", error=ErrorBody("engine_error", ""))


@pytest.mark.protocol(6)
def test_lines_of_another_shard_are_refused_both_ways(tmp_path: Path) -> None:
    store, plan = answered(tmp_path)
    one, two = (entry.shard for entry in read_shards(store, plan)[:2])
    store.write(plan.layout.results(one), store.read(plan.layout.results(two)))
    refuse(store, plan, f"shard {one}: ", "without a line", "nobody asked for")


def test_results_that_are_gone_are_refused(tmp_path: Path) -> None:
    store, plan = answered(tmp_path)
    shard = first_shard(store, plan)
    store.delete(plan.layout.results(shard))
    refuse(store, plan, f"shard {shard}: ", "is gone")


@pytest.mark.protocol(6)
@pytest.mark.parametrize("original", [True, False], ids=["an original", "a duplicate"])
def test_a_line_removed_from_the_ledger_is_refused(tmp_path: Path, original: bool) -> None:
    store, plan = answered(tmp_path)
    assert store.folder is not None
    shard = first_shard(store, plan)
    path = store.folder / plan.layout.ledger(shard)
    rows = pq.ParquetFile(path).read()
    kept = rows.to_pylist()
    kept.remove(next(row for row in kept if (row["duplicate_of"] is None) == original))
    pq.write_table(pa.Table.from_pylist(kept, rows.schema), path)
    refuse(store, plan, f"shard {shard}: ", f"{len(kept)} documents in the ledger, {len(kept) + 1}")


@pytest.mark.protocol(6)
def test_a_lost_file_of_rejected_rows_is_refused(tmp_path: Path) -> None:
    store, plan = answered(tmp_path)
    store.delete(plan.layout.rejected(0))
    refuse(store, plan, "rejected/00000.jsonl: is gone, with 1 rejected rows", "rows read 26 != ")


def test_a_short_file_of_rejected_rows_is_refused(tmp_path: Path) -> None:
    store, plan = answered(tmp_path)
    store.write(plan.layout.rejected(0), b"")
    refuse(store, plan, "rejected/00000.jsonl: holds 0 rejected rows, 1 were written")


@pytest.mark.protocol(6)
def test_rows_read_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    store, plan = answered(tmp_path)
    path = plan.layout.scan_report(0)
    report = json.loads(store.read(path))
    store.write(path, json.dumps(report | {"rows_read": 27}).encode())
    refuse(store, plan, f"job {plan.job_id}: rows read 27 != documents 25", "difference +1")


def test_no_refused_job_counts_more_than_its_manifest(tmp_path: Path) -> None:
    store, plan = answered(tmp_path)
    assert merge_shards(store, plan).law.documents == read_manifest(store, plan).documents


def test_the_model_column_names_model_and_commit(tmp_path: Path) -> None:
    _, plan = small_job(tmp_path, ROWS)
    block = {"engine": "vllm", "engine_args": {}, "revision": "main"}
    for model, label in [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B@0123456789ab"),
        ("/models/tiny", "tiny@0123456789ab"),
        ("file:///models/tiny/", "tiny@0123456789ab"),
    ]:
        job = {**plan.job, "local": {**block, "model": model}}
        pinned = msgspec.structs.replace(plan, job=job, model_commit="0123456789abcdef")
        assert model_label(pinned) == label
