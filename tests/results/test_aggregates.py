"""What is counted of a merged file before the gate judges it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardline.results.aggregates import Aggregates
from shardline.results.schema import published_schema
from tests.factories import make_job

GOOD: dict[str, Any] = {
    "document_id": "d1",
    "output": "bug",
    "model": "m",
    "finish_reason": "stop",
    "prompt_tokens": 1,
    "completion_tokens": 0,
    "fingerprint": "f1",
    "duplicate_of": None,
    "source": "a.jsonl",
    "row": 1,
    "job_id": "j",
}


@pytest.fixture
def aggregates(tmp_path: Path) -> Any:
    with Aggregates(
        tmp_path,
        job_ids=["j"],
        choices=["bug", "other"],
        finishes=["stop", "length"],
        output_required=True,
    ) as opened:
        yield opened


def schema(tmp_path: Path) -> Any:
    return published_schema(make_job(tmp_path, output={"choices": ["bug", "other"]}), {})


def write(tmp_path: Path, *rows: dict[str, Any], kind: Any = None) -> Path:
    path = tmp_path / f"part [{len(list(tmp_path.iterdir()))}].parquet"
    pq.write_table(pa.Table.from_pylist(list(rows), kind or schema(tmp_path)), path)
    return path


def test_a_good_file_counts_nothing_bad(tmp_path: Path, aggregates: Aggregates) -> None:
    path = write(tmp_path, GOOD, GOOD | {"document_id": "d2", "row": 2})
    counts = aggregates.add(path, schema(tmp_path))
    assert counts.pop("rows") == 2
    assert set(counts.values()) == {0}


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        ({"document_id": None}, "null_keys"),
        ({"output": None}, "null_outputs"),
        ({"output": "neither"}, "foreign_outputs"),
        ({"finish_reason": "abort"}, "odd_finishes"),
        ({"finish_reason": None}, "odd_finishes"),
        ({"completion_tokens": -1}, "negative_tokens"),
        ({"job_id": "other"}, "foreign_rows"),
        ({"job_id": None}, "foreign_rows"),
    ],
)
def test_each_bad_value_is_counted_by_itself(
    tmp_path: Path, aggregates: Aggregates, change: dict[str, Any], counted: str
) -> None:
    counts = aggregates.add(write(tmp_path, GOOD, GOOD | change), schema(tmp_path))
    assert {name for name, n in counts.items() if n and name != "rows"} == {counted}


def test_a_file_with_other_types_is_found(tmp_path: Path, aggregates: Aggregates) -> None:
    planned = schema(tmp_path)
    other = planned.set(planned.names.index("row"), pa.field("row", pa.int32()))
    assert aggregates.add(write(tmp_path, GOOD, kind=other), planned)["schema_differs"] == 1


@pytest.mark.protocol(17)
def test_keys_that_repeat_across_files_are_found_and_a_duplicates_id_is_not(
    tmp_path: Path, aggregates: Aggregates
) -> None:
    one = write(tmp_path, GOOD, GOOD | {"document_id": "d2", "row": 2})
    same_id = write(tmp_path, GOOD | {"row": 3}, GOOD | {"row": 4, "duplicate_of": "d1"})
    same_place = write(tmp_path, GOOD | {"document_id": "d5", "row": 2})
    for path in (one, same_id, same_place):
        aggregates.add(path, schema(tmp_path))
    ids, places = aggregates.suspects("id"), aggregates.suspects("place")
    assert (len(ids), len(places)) == (1, 1)
    found = [
        row
        for path in (one, same_id, same_place)
        for row in aggregates.suspect_rows(path, ids, places)
    ]
    assert [name for name, _ in found].count("d1") == 2
    assert [place for _, place in found].count(("a.jsonl", 2)) == 2


def test_structs_are_looked_at_without_choices(tmp_path: Path) -> None:
    job = make_job(
        tmp_path,
        output={"json_schema": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    )
    kind = published_schema(job, {})
    path = write(
        tmp_path, GOOD | {"output": {"n": 1}}, GOOD | {"output": None, "row": 2}, kind=kind
    )
    with Aggregates(
        tmp_path, job_ids=["j"], choices=None, finishes=["stop"], output_required=False
    ) as opened:
        counts = opened.add(path, kind)
    assert {name for name, n in counts.items() if n} == {"rows"}
