"""The columns of the published table and their types, from the job file and the carried columns.

A job's types are decided once, before a model runs, and kept in `schema.json`: they follow the
table that is there, so that one that holds doubles gets doubles even from a day of whole numbers.
Added columns (and added fields of a struct) extend the table, whole numbers may become doubles; any
other change is refused, naming the column.

How a JSON Schema becomes a type: an object with properties is a struct, an array with items a list,
string, integer (64 bits), number, boolean and enums or constants of them are themselves, and a union
with null is nullable as everything is. All else (free objects, mixed unions, recursion) is a string
of JSON. A value that its type cannot hold, such as a whole number over 64 bits or a key that the
schema does not name, is null or absent in the table and counted: the answer stays in `results`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from shardline.corpus.records import read_scan_report
from shardline.errors import FieldProblem, JobFileError
from shardline.results.delta import table_schema
from shardline.shards.manifest import read_manifest
from shardline.shards.parquet import arrow_type

if TYPE_CHECKING:
    from shardline.job import JobFile
    from shardline.plan import Plan
    from shardline.store import Store

PARTITION_COLUMN = "dt"
_AFTER_CARRIED = (
    ("model", "string"),
    ("finish_reason", "string"),
    ("prompt_tokens", "int64"),
    ("completion_tokens", "int64"),
    ("fingerprint", "string"),
    ("duplicate_of", "string"),
    ("source", "string"),
    ("row", "int64"),
    ("job_id", "string"),
)
_SCALARS = {"string": "string", "integer": "int64", "number": "double", "boolean": "bool"}
_KINDS_OF_VALUES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_INT64 = range(-(2**63), 2**63)


class ColumnChanged(Exception):
    """A column whose type is not the table's; `check_schema` says it to the user."""

    def __init__(self, column: str, table: Any, job: Any) -> None:
        self.column, self.table, self.job = column, table, job
        super().__init__(f"{column}: the published table holds {table}, this job would write {job}")


class _Stored(msgspec.Struct, frozen=True):
    """`schema.json`: readable columns, and the same schema exactly."""

    columns: dict[str, str]
    arrow: str


def check_schema(store: Store, plan: Plan) -> Any:
    """Decide the job's published columns, put them, and return them as an Arrow schema.

    Call it after `write_manifest`, before a model runs: a changed type is found here for free.

    Raises:
        JobFileError: a column's type is not the one of the published table.
    """
    if (found := store.read_or_none(plan.layout.published_schema)) is not None:
        return _decode(found)
    job = plan.job_file
    own = published_schema(job, _carry_types(store, plan))
    try:
        schema = fit_schema(own, table_schema(store, job.table))
    except ColumnChanged as error:
        raise changed_column(job, error) from error
    # a table that another job extends meanwhile must not change what this one writes: one winner
    store.put_once(plan.layout.published_schema, _encode(schema))
    return _decode(store.read(plan.layout.published_schema))


def _carry_types(store: Store, plan: Plan) -> dict[str, str]:
    """Types of the carried columns; null for one that has no value, which fits any table."""
    kinds: set[str] = set()
    for split in range(len(plan.splits)):
        found = read_scan_report(store, plan, split).kinds
        kinds |= {column for column in found if found[column]}
    types = read_manifest(store, plan).carry_types
    return {name: kind if name in kinds else "null" for name, kind in types.items()}


def changed_column(job: JobFile, error: ColumnChanged) -> JobFileError:
    """What a user is told of a changed column, with the ways out."""
    field = "output" if error.column.startswith("output") else f"corpus.carry.{error.column}"
    advice = "publish under another name, or rename the column"
    return JobFileError(job.name, [FieldProblem(field, f"{error}; {advice}")])


def published_schema(job: JobFile, carry_types: Mapping[str, str]) -> Any:
    """The published columns but `dt`, which stands in the path."""
    import pyarrow as pa

    carried = [(name, arrow_type(kind)) for name, kind in carry_types.items()]
    after = [(name, arrow_type(kind)) for name, kind in _AFTER_CARRIED]
    return pa.schema([("document_id", pa.string()), *carried, ("output", output_type(job)), *after])


def output_type(job: JobFile) -> Any:
    """The type of `output`: a string, or what the JSON Schema maps to."""
    import pyarrow as pa

    schema = job.output.json_schema
    return pa.string() if schema is None else json_schema_type(schema)


def json_schema_type(schema: Any, root: Any = None, above: tuple[str, ...] = ()) -> Any:
    """The Arrow type of a JSON Schema; a string (of JSON) where there is none.

    `above` are the references that are being followed, so that recursion ends.
    """
    import pyarrow as pa

    root = schema if root is None else root
    if not isinstance(schema, dict):
        return pa.string()
    if isinstance(reference := schema.get("$ref"), str):
        target = _resolve(root, reference)
        if target is None or reference in above:
            return pa.string()
        return json_schema_type(target, root, (*above, reference))
    inner = _without_null(schema)
    if inner is None:
        return pa.string()
    if inner is not schema:
        return json_schema_type(inner, root, above)
    return _typed(schema, root, above)


def _typed(schema: dict[str, Any], root: Any, above: tuple[str, ...]) -> Any:
    import pyarrow as pa

    kind = schema.get("type") or _kind_of_values(schema) or ("properties" in schema and "object")
    if kind == "object" and schema.get("properties") and not schema.get("additionalProperties"):
        fields = schema["properties"].items()
        return pa.struct([(name, json_schema_type(part, root, above)) for name, part in fields])
    if kind == "array" and isinstance(schema.get("items"), dict):
        return pa.list_(pa.field("element", json_schema_type(schema["items"], root, above)))
    return arrow_type(_SCALARS.get(kind, "string") if isinstance(kind, str) else "string")


def _without_null(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema without its null: itself where it has none, None for any other union."""
    for union in ("anyOf", "oneOf"):
        if union in schema:
            parts = [part for part in schema[union] if part != {"type": "null"}]
            return parts[0] if len(parts) == 1 and isinstance(parts[0], dict) else None
    if "allOf" in schema or "not" in schema:
        parts = schema.get("allOf") or []
        return parts[0] if len(parts) == 1 and isinstance(parts[0], dict) else None
    kinds = schema.get("type")
    if not isinstance(kinds, list):
        return schema
    rest = [kind for kind in kinds if kind != "null"]
    return schema | {"type": rest[0]} if len(rest) == 1 else None


def _kind_of_values(schema: dict[str, Any]) -> str | None:
    """The one kind of all values of an enum or a constant."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    kinds = {_KINDS_OF_VALUES.get(type(value)) for value in values if value is not None}
    if kinds == {"integer", "number"}:
        return "number"
    return kinds.pop() if len(kinds) == 1 else None


def _resolve(root: Any, reference: str) -> Any:
    """The target of a local reference such as #/$defs/Name, or None."""
    if not reference.startswith("#/"):
        return None
    target = root
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, dict) or name not in target:
            return None
        target = target[name]
    return target


def conform(value: Any, kind: Any) -> tuple[Any, int]:
    """A decoded JSON value as its Arrow type holds it, and how many values were lost on the way."""
    import pyarrow.types as pt

    if value is None:
        return None, 0
    if pt.is_string(kind):
        return (value if isinstance(value, str) else msgspec.json.encode(value).decode()), 0
    if pt.is_struct(kind):
        return _conform_struct(value, kind)
    if pt.is_list(kind):
        if not isinstance(value, list):
            return None, 1
        parts = [conform(part, kind.value_type) for part in value]
        return [part for part, _ in parts], sum(lost for _, lost in parts)
    return _conform_scalar(value, kind)


def _conform_struct(value: Any, kind: Any) -> tuple[Any, int]:
    if not isinstance(value, dict):
        return None, 1
    names = {field.name for field in kind}
    parts = {field.name: conform(value.get(field.name), field.type) for field in kind}
    lost = sum(lost for _, lost in parts.values()) + sum(name not in names for name in value)
    return {name: part for name, (part, _) in parts.items()}, lost


def _conform_scalar(value: Any, kind: Any) -> tuple[Any, int]:
    import pyarrow.types as pt

    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if pt.is_boolean(kind) and isinstance(value, bool):
        return value, 0
    if pt.is_floating(kind) and is_number:
        return _as_double(value)
    # JSON Schema calls 3.0 an integer
    is_whole = is_number and (isinstance(value, int) or value.is_integer())
    if pt.is_int64(kind) and is_whole and int(value) in _INT64:
        return int(value), 0
    return None, 1


def _as_double(value: float) -> tuple[float | None, int]:
    try:
        return float(value), 0
    except OverflowError:
        return None, 1


def fit_schema(own: Any, table: Any | None) -> Any:
    """The job's columns in the types of the table that is there.

    Raises:
        ColumnChanged: a column that cannot become the table's type, or the table's its.
    """
    import pyarrow as pa

    held = {} if table is None else {field.name: field.type for field in table}
    return pa.schema(
        # a column without any value, of which no table knows better, is published as strings
        [(f.name, unify(held.get(f.name, _fallback(f.type)), f.type, f.name)) for f in own]
    )


def _fallback(kind: Any) -> Any:
    import pyarrow as pa
    import pyarrow.types as pt

    return pa.string() if pt.is_null(kind) else kind


def extend_schema(table: Any | None, own: Any) -> Any:
    """The table's columns and the job's together: what the table becomes by publishing.

    Raises:
        ColumnChanged: see `fit_schema`.
    """
    import pyarrow as pa

    if table is None:
        return pa.schema([*own, pa.field(PARTITION_COLUMN, pa.string())])
    fitted = {field.name: field for field in fit_schema(own, table)}
    kept = [fitted.pop(field.name, field) for field in table]
    return pa.schema([*kept, *fitted.values()])


def unify(table: Any, job: Any, column: str) -> Any:
    """One type for both, or ColumnChanged naming the column or field."""
    import pyarrow as pa
    import pyarrow.types as pt

    if table == job:
        return table
    if pt.is_null(table) or pt.is_null(job):
        return job if pt.is_null(table) else table
    if {table, job} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pt.is_struct(table) and pt.is_struct(job):
        return pa.struct(_unify_fields(table, job, column))
    if pt.is_list(table) and pt.is_list(job):
        inner = unify(table.value_type, job.value_type, f"{column}[]")
        return pa.list_(pa.field("element", inner))
    raise ColumnChanged(column, table, job)


def _unify_fields(table: Iterable[Any], job: Iterable[Any], column: str) -> list[Any]:
    new = {field.name: field for field in job}
    fields = []
    for field in table:
        mine = new.pop(field.name, field)
        fields.append((field.name, unify(field.type, mine.type, f"{column}.{field.name}")))
    return fields + [(field.name, field.type) for field in new.values()]


def _encode(schema: Any) -> bytes:
    stored = _Stored(
        columns={field.name: str(field.type) for field in schema},
        arrow=base64.b64encode(schema.serialize().to_pybytes()).decode(),
    )
    return msgspec.json.format(msgspec.json.encode(stored), indent=1)


def _decode(stored: bytes) -> Any:
    import pyarrow as pa

    arrow = msgspec.json.decode(stored, type=_Stored).arrow
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(arrow)))
