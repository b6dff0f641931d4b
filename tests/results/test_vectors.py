"""Vectors: of one length in the whole job and the table, finite, and fixed in size for readers."""

from __future__ import annotations

import base64
import json
import math
from array import array
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardline.engines.answers import make_result
from shardline.engines.base import Answer
from shardline.errors import JobFileError, LawBroken, ValidationFailed
from shardline.layout import published
from shardline.plan import Plan
from shardline.results.delta import open_table, table_schema
from shardline.results.files import published_files
from shardline.results.lines import output_reader, read_results
from shardline.results.merge import merge_shards
from shardline.results.publish import publish_results
from shardline.results.schema import ColumnChanged, check_schema, output_type, unify
from shardline.results.settle import settle_shards
from shardline.results.validate import validate_results
from shardline.results.vectors import BadVector, count_odd_vectors, decode_vector, vector_type
from shardline.results.verify import verify_job
from shardline.rows import Request, Result
from shardline.shards.manifest import read_shards
from shardline.store import Store
from tests.factories import make_job
from tests.results.answers import NOW, answer_shard, error, publish_unseen, small_job

ROWS: list[Any] = [{"id": f"d{i}", "text": f"text {i % 6}"} for i in range(9)]


def vector_of(request: Request, dimension: int = 4) -> list[float]:
    """A vector that says which text it is of."""
    number = int(request.body["input"].split()[-1])
    return [float(number)] * dimension


def embedded(request: Request, numbers: list[float] | None = None) -> Result:
    vector = array("f", vector_of(request) if numbers is None else numbers).tobytes()
    answer = Answer("", "stop", 5, 0, vector)
    return make_result(request, "r", answer, model="m", refuse_truncated=False)


def answered(folder: Path, answer: Any = embedded, **overrides: Any) -> tuple[Store, Plan]:
    """An embedding job with two shards, settled."""
    store, plan = small_job(folder, ROWS, kind="embedding", **overrides)
    for entry in read_shards(store, plan):
        answer_shard(store, plan, entry.shard, answer)
    settle_shards(store, plan, generation=1)
    return store, plan


def schemas(store: Store, plan: Plan) -> set[Any]:
    assert store.folder is not None
    files = (store.folder / published(plan.job_file.table)).rglob("*.parquet")
    return {pq.ParquetFile(path).schema_arrow.field("output").type for path in files}


def with_length(dimension: int) -> Any:
    """Vectors of this length for even texts."""
    return lambda r: embedded(
        r, vector_of(r, dimension if int(r.body["input"].split()[-1]) % 2 == 0 else 4)
    )


def test_vectors_are_published_as_a_fixed_size_list_of_float32(tmp_path: Path) -> None:
    store, plan = answered(tmp_path)
    report = merge_shards(store, plan)
    assert (report.rows, report.law.results, report.law.duplicates) == (9, 6, 3)
    assert schemas(store, plan) == {vector_type(4)}
    assert check_schema(store, plan).field("output").type == vector_type(4)
    publish_unseen(store, plan)
    rows = {
        row["document_id"]: row
        for row in open_table(store, "test-job").to_pyarrow_table().to_pylist()
    }
    assert len(rows) == 9
    for given in ROWS:
        row = rows[given["id"]]
        assert row["output"] == [float(given["text"].split()[-1])] * 4
        assert (row["prompt_tokens"], row["completion_tokens"]) == (5, 0)
        assert row["finish_reason"] is None
    assert verify_job(store, plan).holds


def test_readers_know_the_length(tmp_path: Path) -> None:
    store, plan = answered(tmp_path)
    publish_unseen(store, plan)
    files = published_files(store, "test-job")
    assert pl.read_parquet(files)["output"].dtype == pl.Array(pl.Float32, 4)
    by_delta = pl.read_delta(store.uri_of(published("test-job")), use_pyarrow=True)
    assert len(by_delta) == 9
    assert table_schema(store, "test-job").field("output").type == vector_type(4)


def test_the_same_merge_writes_the_same_bytes(tmp_path: Path) -> None:
    store, plan = answered(tmp_path)
    first = merge_shards(store, plan)
    _, again = answered(tmp_path / "again")
    files = merge_shards(store, plan).files
    assert files == first.files
    assert again.job_id != plan.job_id


@pytest.mark.parametrize("length", [3, 5])
def test_a_vector_of_another_length_is_named_by_shard_and_line(tmp_path: Path, length: int) -> None:
    store, plan = answered(tmp_path, with_length(length))
    with pytest.raises(
        ValidationFailed,
        match=r"shard-00000-00\d\.jsonl line \d: the vector of [0-9a-f]{32} has \d numbers, expected",
    ):
        merge_shards(store, plan)
    assert open_table(store, "test-job") is None


def test_shards_that_agree_each_for_itself_and_not_with_each_other_are_refused(
    tmp_path: Path,
) -> None:
    store, plan = small_job(tmp_path, ROWS, kind="embedding")
    for number, entry in enumerate(read_shards(store, plan)):
        answer_shard(store, plan, entry.shard, lambda r, n=number: embedded(r, vector_of(r, 4 + n)))
    settle_shards(store, plan, generation=1)
    with pytest.raises(ValidationFailed, match=r"shard-00000-001\.jsonl line 1: .* expected 4"):
        merge_shards(store, plan)


def test_the_job_files_dimensions_are_held_to(tmp_path: Path) -> None:
    store, plan = answered(tmp_path, parameters={"dimensions": 8})
    assert check_schema(store, plan).field("output").type == vector_type(8)
    with pytest.raises(ValidationFailed, match=r"line 1: .* has 4 numbers, expected 8"):
        merge_shards(store, plan)


@pytest.mark.protocol(18)
def test_a_table_keeps_its_length(tmp_path: Path) -> None:
    store, plan = answered(tmp_path)
    publish_unseen(store, plan)
    later = NOW + timedelta(hours=1)
    with pytest.raises(JobFileError, match=r"output: the published table holds .*\[4\], .*\[8\]"):
        answered(tmp_path, store=store, now=later, rerun=1, parameters={"dimensions": 8})
    _, other = answered(tmp_path, lambda r: embedded(r, [1.0] * 8), store=store, now=later, rerun=2)
    with pytest.raises(ValidationFailed, match="has 8 numbers, expected 4 as in"):
        merge_shards(store, other)
    _, same = answered(tmp_path, store=store, now=later, rerun=3)
    assert publish_unseen(store, same).rows == 9


@pytest.mark.protocol(18)
def test_a_table_of_texts_does_not_become_one_of_vectors(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    for entry in read_shards(store, plan):
        answer_shard(store, plan, entry.shard)
    publish_unseen(store, plan)
    with pytest.raises(JobFileError, match="output: the published table holds string"):
        answered(tmp_path, store=store)


def test_a_job_without_vectors_leaves_the_length_open_for_the_next(tmp_path: Path) -> None:
    store, plan = answered(tmp_path, error)
    assert publish_unseen(store, plan).rows == 0
    assert table_schema(store, "test-job").field("output").type == vector_type(None)
    _, later = answered(tmp_path, store=store, now=NOW + timedelta(hours=1), rerun=1)
    publish_unseen(store, later)
    assert table_schema(store, "test-job").field("output").type == vector_type(4)


def test_dead_letters_stay_out_and_the_law_holds(tmp_path: Path) -> None:
    store, plan = answered(tmp_path, lambda r: error(r) if "3" in r.body["input"] else embedded(r))
    report = merge_shards(store, plan)
    assert (report.law.results, report.law.dead_letters, report.rows) == (5, 1, 8)
    assert not report.law.differences()


@pytest.mark.parametrize(
    ("table", "job", "both"),
    [
        (vector_type(None), vector_type(4), vector_type(4)),
        (vector_type(4), vector_type(None), vector_type(4)),
        (vector_type(4), vector_type(4), vector_type(4)),
    ],
)
def test_an_open_length_takes_the_one_that_is_known(table: Any, job: Any, both: Any) -> None:
    assert unify(table, job, "output") == both


DOUBLES = pa.list_(pa.field("element", pa.float64()))


@pytest.mark.parametrize(
    ("table", "job"),
    [
        (vector_type(5), vector_type(4)),
        (pa.string(), vector_type(4)),
        (vector_type(None), pa.string()),
        (DOUBLES, vector_type(4)),
        (DOUBLES, vector_type(None)),
        (vector_type(4), DOUBLES),
    ],
)
def test_another_type_or_length_is_refused(table: Any, job: Any) -> None:
    with pytest.raises(ColumnChanged, match="output"):
        unify(table, job, "output")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no base64!", "is not base64"),
        (None, "has 0 bytes"),
        (base64.b64encode(b"12345").decode(), "has 5 bytes"),
        (base64.b64encode(b"1234").decode(), "has 1 numbers, expected 2"),
    ],
)
def test_what_is_no_vector_is_told(text: str | None, message: str) -> None:
    with pytest.raises(BadVector, match=message):
        decode_vector(text, 2)


def read_one(tmp_path: Path, body: dict[str, Any], **job: Any) -> Any:
    line = {"id": "i", "custom_id": "a", "response": {"status_code": 200, "body": body}}
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(line | {"error": None}) + "\n")
    checked = make_job(tmp_path, **job)
    return read_results(path, output_reader(checked, output_type(checked))).ended["a"]


def test_a_provider_that_counts_no_completion_tokens_of_a_vector_is_read(tmp_path: Path) -> None:
    vector = array("f", [1.0, 2.0]).tobytes()
    item = {"object": "embedding", "index": 0, "embedding": base64.b64encode(vector).decode()}
    body = {"object": "list", "data": [item], "usage": {"prompt_tokens": 3, "total_tokens": 3}}
    ended = read_one(tmp_path, body, kind="embedding")
    assert (ended.output, ended.prompt_tokens, ended.completion_tokens) == (vector, 3, 0)
    with pytest.raises(LawBroken, match="line 1: expected one answer, found 0"):
        read_one(tmp_path, body | {"data": []}, kind="embedding")


def test_a_text_completion_is_read(tmp_path: Path) -> None:
    body = {"choices": [{"index": 0, "text": "so", "finish_reason": "length"}]}
    ended = read_one(tmp_path, body, kind="completion")
    assert (ended.output, ended.finish_reason) == ("so", "length")


def count(tmp_path: Path, vectors: list[Any], dimension: int | None, kind: Any) -> int:
    path = tmp_path / "part.parquet"
    pq.write_table(pa.table({"output": pa.array(vectors, kind)}), path)
    return count_odd_vectors(path, dimension)


def test_odd_vectors_are_counted_by_row(tmp_path: Path) -> None:
    good, nan = [1.0, 2.0], [math.nan, math.nan]
    fixed = [good, nan, [1.0, math.inf], [None, 1.0], None, good]
    assert count(tmp_path, fixed, 2, vector_type(2)) == 3
    assert count(tmp_path, [good, [1.0], [], good], 2, vector_type(None)) == 2
    assert count(tmp_path, [good], None, vector_type(None)) == 1
    assert count(tmp_path, [], 2, vector_type(2)) == 0


@pytest.mark.slow
def test_the_gate_passes_vectors_and_stops_odd_ones(tmp_path: Path) -> None:
    store, plan = answered(tmp_path)
    report = merge_shards(store, plan)
    assert store.folder is not None
    path = store.folder / published("test-job") / report.files[0].path
    good = path.read_bytes()
    table = pq.ParquetFile(path).read()
    rows = table.to_pylist()
    for output, says in (([math.nan] * 4, "odd_vectors = 1"), (None, "null_outputs = 1")):
        changed = [rows[0] | {"output": output}, *rows[1:]]
        pq.write_table(pa.Table.from_pylist(changed, table.schema), path)
        with pytest.raises(ValidationFailed, match=says):
            validate_results(store, plan)
    path.write_bytes(good)
    validation = validate_results(store, plan)
    assert "vectors have one length, and every number in them is finite" in validation.rules
    assert publish_results(store, plan).rows == 9
