"""Parquet: only the columns that are read are judged; one bad cell costs one row."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardline.corpus.formats.parquet import read_parquet
from shardline.corpus.raw import Columns, RawRow, Rejection, UnreadableFile
from shardline.template import Column

IDS = pa.array(["a", "b", "c"])


def columns(text: str = "text", carry: tuple[str, ...] = (), id_: str | None = "id") -> Columns:
    return Columns(id_, (Column(tuple(text.split("."))),), carry, 1 << 20)


def written(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def read(content: bytes, wanted: Columns) -> list[Any]:
    found = []
    for number, row in read_parquet(io.BytesIO(content), wanted):
        if isinstance(row, Rejection):
            found.append((number, str(row.reason)))
        else:
            assert isinstance(row, RawRow)
            found.append((number, row.id, *row.texts, *row.carry))
    return found


def reason(content: bytes, wanted: Columns) -> str:
    with pytest.raises(UnreadableFile) as caught:
        read(content, wanted)
    return str(caught.value.reason)


def test_rows_are_numbered_through_all_row_groups() -> None:
    table = pa.table({"id": list(range(10)), "text": [f"t{n}" for n in range(10)]})
    found = read(written(table, row_group_size=3), columns())
    assert found == [(n + 1, n, f"t{n}") for n in range(10)]


@pytest.mark.parametrize(
    "make",
    [
        lambda cells: pa.array(cells, pa.binary()).view(pa.string()),
        lambda cells: pa.array(cells, pa.large_binary()).view(pa.large_string()),
    ],
    ids=["string", "large_string"],
)
def test_a_cell_that_is_no_utf8_costs_its_row_alone(make: Any) -> None:
    text = make([b"one", b"\xff\xfe", b"three"])
    table = pa.table({"id": IDS, "text": text, "tag": text})
    assert read(written(table), columns(carry=("tag",))) == [
        (1, "a", "one", "one"),
        (2, "invalid_utf8"),
        (3, "c", "three", "three"),
    ]


def test_a_dictionary_that_is_no_utf8_spoils_the_file_and_says_so() -> None:
    cells = pa.array([b"one", b"\xff"], pa.binary()).view(pa.string())
    text = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), cells)
    assert reason(written(pa.table({"id": IDS, "text": text})), columns()) == "corrupt"


def test_integers_stay_integers_beside_nulls() -> None:
    table = pa.table({"id": pa.array([9007199254740993, None]), "text": pa.array([1, None])})
    assert read(written(table), columns()) == [(1, 9007199254740993, 1), (2, None, None)]


def test_a_dotted_column_reads_the_field_of_a_struct() -> None:
    struct = pa.array([{"title": "t", "x": 1}, None, {"title": None, "x": 2}])
    content = written(pa.table({"id": IDS, "meta": struct}))
    assert read(content, columns("meta.title")) == [(1, "a", "t"), (2, "b", None), (3, "c", None)]
    assert reason(content, columns("meta.body")) == "missing_column"
    assert reason(content, columns("meta.x.y")) == "column_type"
    both = read(content, columns("meta.title", carry=("meta",)))
    assert both[0] == (1, "a", "t", {"title": "t", "x": 1})


def test_carried_values_become_json() -> None:
    table = pa.table(
        {
            "id": ["a"],
            "text": ["t"],
            "when": [datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)],
            "day": [date(2026, 1, 2)],
            "price": [Decimal("1.50")],
            "tags": [["x", None]],
            "share": [0.5],
            "flag": [True],
            "nothing": pa.nulls(1),
        }
    )
    carry = ("when", "day", "price", "tags", "share", "flag", "nothing")
    ((_, _, _, when, *others),) = read(written(table), columns(carry=carry))
    assert when.startswith("2026-01-02 03:04:05")
    assert others == ["2026-01-02", "1.50", ["x", None], 0.5, True, None]


@pytest.mark.parametrize(
    ("fields", "wanted", "expected"),
    [
        ({"id": IDS}, columns(), "missing_column"),
        ({"id": IDS, "text": IDS}, columns(carry=("tag",)), "missing_column"),
        ({"id": IDS, "text": pa.array([0.5, 1.0, 2.0])}, columns(), "column_type"),
        ({"id": IDS, "text": pa.array([True, False, None])}, columns(), "column_type"),
        ({"id": pa.array([0.5, 1.0, 2.0]), "text": IDS}, columns(), "column_type"),
        ({"id": IDS, "text": IDS, "b": pa.array([b"x"] * 3)}, columns(carry=("b",)), "column_type"),
    ],
)
def test_a_column_that_cannot_be_used_is_an_error_of_the_file(
    fields: dict[str, Any], wanted: Columns, expected: str
) -> None:
    assert reason(written(pa.table(fields)), wanted) == expected


def test_a_column_that_stands_twice_is_an_error_only_if_it_is_read() -> None:
    table = pa.Table.from_arrays([IDS, IDS, IDS, IDS], names=["id", "text", "x", "x"])
    assert len(read(written(table), columns())) == 3
    assert reason(written(table), columns("x")) == "duplicate_column"


def test_other_columns_may_hold_anything() -> None:
    table = pa.table({"id": IDS, "text": IDS, "b": pa.array([b"\xff"] * 3), "n": pa.nulls(3)})
    assert len(read(written(table), columns())) == 3


def test_a_damaged_page_is_corrupt() -> None:
    table = pa.table({"id": [str(n) for n in range(2_000)], "text": ["x" * 40] * 2_000})
    content = bytearray(written(table, use_dictionary=False, write_page_checksum=False))
    content[200:4_000] = b"\xff" * 3_800
    assert reason(bytes(content), columns()) == "corrupt"


@pytest.mark.parametrize("size", [0, 2, 4, 8, 100])
def test_a_file_cut_short_is_truncated(size: int) -> None:
    content = written(pa.table({"id": IDS, "text": IDS}))
    assert reason(content[:size], columns()) == "truncated"


def test_a_file_of_no_rows_is_read() -> None:
    assert read(written(pa.table({"id": IDS[:0], "text": IDS[:0]})), columns()) == []
