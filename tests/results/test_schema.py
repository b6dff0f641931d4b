"""Published columns: what a JSON Schema becomes, and which changes a table accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardline.errors import JobFileError
from shardline.results.json_types import conform, json_schema_type
from shardline.results.schema import (
    ColumnChanged,
    check_schema,
    extend_schema,
    fit_schema,
    unify,
)
from tests.factories import make_job
from tests.results.answers import answer_all, publish_unseen, small_job

TEXT, WHOLE, DOUBLE, FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()


def list_of(kind: Any) -> Any:
    return pa.list_(pa.field("element", kind))


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, TEXT),
        ({"type": "integer"}, WHOLE),
        ({"type": "number"}, DOUBLE),
        ({"type": "boolean"}, FLAG),
        ({"enum": ["a", "b", None]}, TEXT),
        ({"enum": [1, 2]}, WHOLE),
        ({"enum": [1, 2.5]}, DOUBLE),
        ({"enum": [1, "a"]}, TEXT),
        ({"const": True}, FLAG),
        ({"type": ["integer", "null"]}, WHOLE),
        ({"type": ["integer", "string"]}, TEXT),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, DOUBLE),
        ({"anyOf": [{"type": "number"}, {"type": "string"}]}, TEXT),
        ({"type": "array", "items": {"type": "integer"}}, list_of(WHOLE)),
        ({"type": "array"}, TEXT),
        ({"type": "object"}, TEXT),
        ({"type": "object", "additionalProperties": {"type": "string"}}, TEXT),
        (
            {"properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {}}}},
            pa.struct([("a", TEXT), ("b", list_of(TEXT))]),
        ),
        (
            {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
            TEXT,
        ),
        (True, TEXT),
        ({}, TEXT),
    ],
)
def test_a_json_schema_has_one_type(schema: Any, kind: Any) -> None:
    assert json_schema_type(schema) == kind


def test_references_are_followed_and_recursion_ends_in_json() -> None:
    schema = {
        "$ref": "#/$defs/Node",
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {
                    "name": {"$ref": "#/$defs/Name"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                    "away": {"$ref": "https://example.org/x"},
                },
            },
            "Name": {"type": "string"},
        },
    }
    expected = pa.struct([("name", TEXT), ("children", list_of(TEXT)), ("away", TEXT)])
    assert json_schema_type(schema) == expected


KIND = pa.struct(
    [
        ("s", TEXT),
        ("i", WHOLE),
        ("d", DOUBLE),
        ("b", FLAG),
        ("l", list_of(pa.struct([("x", WHOLE)]))),
    ]
)


def test_a_value_that_fits_is_kept_whole() -> None:
    value = {"s": "é", "i": 3, "d": 1, "b": False, "l": [{"x": 1}, {"x": None}]}
    kept, lost = conform(value, KIND)
    assert (kept, lost) == (value, 0)
    assert pa.array([kept], KIND).to_pylist() == [value]


@pytest.mark.parametrize(
    ("value", "lost"),
    [
        ({"i": 2**63}, 1),
        ({"i": 1.5}, 1),
        ({"i": True}, 1),
        ({"d": 10**400}, 1),
        ({"b": 1}, 1),
        ({"l": {"x": 1}}, 1),
        ({"l": [{"x": "a"}, 3]}, 2),
        ({"unknown": 1}, 1),
        ({}, 0),
        ({"i": 4.0, "d": 2**60}, 0),
        ("no object", 1),
    ],
)
def test_a_value_that_its_type_cannot_hold_is_null_and_counted(value: Any, lost: int) -> None:
    kept, counted = conform(value, KIND)
    assert counted == lost
    pa.array([kept], KIND)


def test_other_kinds_in_a_string_are_json() -> None:
    assert conform({"a": [1, None]}, TEXT) == ('{"a":[1,null]}', 0)
    assert conform("plain", TEXT) == ("plain", 0)


@pytest.mark.parametrize(
    ("table", "job", "both"),
    [
        (WHOLE, DOUBLE, DOUBLE),
        (DOUBLE, WHOLE, DOUBLE),
        (TEXT, pa.null(), TEXT),
        (pa.null(), WHOLE, WHOLE),
        (
            pa.struct([("a", WHOLE)]),
            pa.struct([("b", TEXT)]),
            pa.struct([("a", WHOLE), ("b", TEXT)]),
        ),
        (list_of(WHOLE), list_of(DOUBLE), list_of(DOUBLE)),
    ],
)
def test_two_types_that_go_together(table: Any, job: Any, both: Any) -> None:
    assert unify(table, job, "c") == both


@pytest.mark.parametrize(
    ("table", "job", "named"),
    [
        (WHOLE, TEXT, "c"),
        (FLAG, WHOLE, "c"),
        (pa.struct([("a", WHOLE)]), pa.struct([("a", TEXT)]), r"c\.a"),
        (list_of(WHOLE), list_of(TEXT), r"c\[\]"),
        (TEXT, pa.struct([("a", WHOLE)]), "c"),
    ],
)
def test_two_types_that_do_not_are_refused_by_name(table: Any, job: Any, named: str) -> None:
    with pytest.raises(ColumnChanged, match=f"^{named}: the published table holds"):
        unify(table, job, "c")


def test_a_column_without_any_value_follows_the_table_and_else_is_text() -> None:
    own = pa.schema([("empty", pa.null())])
    assert fit_schema(own, None).field("empty").type == TEXT
    assert fit_schema(own, pa.schema([("empty", WHOLE)])).field("empty").type == WHOLE


def test_a_column_that_the_job_lacks_stays_in_the_table() -> None:
    table = pa.schema([("a", TEXT), ("old", WHOLE), ("dt", TEXT)])
    extended = extend_schema(table, pa.schema([("new", FLAG), ("a", TEXT)]))
    assert extended.names == ["a", "old", "dt", "new"]


def rows(**columns: Any) -> list[dict[str, Any]]:
    return [{"id": f"d{i}", "text": f"text {i}", **columns} for i in range(3)]


@pytest.mark.protocol(18)
def test_a_changed_type_is_refused_before_a_model_runs(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, rows(queue="a"), corpus__carry=["queue"])
    answer_all(store, plan)
    publish_unseen(store, plan)
    with pytest.raises(
        JobFileError, match=r"corpus\.carry\.queue: queue: the published table holds"
    ):
        small_job(tmp_path, rows(queue=True), store=store, corpus__carry=["queue"])


@pytest.mark.protocol(18)
def test_added_columns_and_empty_ones_are_accepted(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, rows(score=1), corpus__carry=["score"])
    answer_all(store, plan)
    publish_unseen(store, plan)
    _, later = small_job(
        tmp_path, rows(score=None, more="x"), store=store, corpus__carry=["score", "more"]
    )
    schema = check_schema(store, later)
    assert schema.field("score").type == WHOLE
    assert schema.field("more").type == TEXT


def test_the_types_of_a_job_do_not_follow_a_table_that_changes_later(tmp_path: Path) -> None:
    store, early = small_job(tmp_path, rows(score=1), corpus__carry=["score"])
    _, other = small_job(tmp_path, rows(score=1.5), store=store, corpus__carry=["score"])
    answer_all(store, other)
    publish_unseen(store, other)
    assert check_schema(store, early).field("score").type == WHOLE


@pytest.mark.parametrize("carry", [["Source"], ["OUTPUT"], ["queue", "Queue"]])
def test_carried_names_that_a_reader_would_confuse_are_refused(
    tmp_path: Path, carry: list[str]
) -> None:
    with pytest.raises(JobFileError, match=r"corpus\.carry: expected different columns"):
        make_job(tmp_path, corpus__carry=carry)
