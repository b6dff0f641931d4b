"""The columns of the published table and their types, from the job file and the carried columns.

A job's types are decided once, before a model runs, and kept in `schema.json`: they follow the
table that is there, so that one that holds doubles gets doubles even from a day of whole numbers.
Added columns (and added fields of a struct) extend the table, whole numbers may become doubles; any
other change is refused, naming the column. How long a vector is may be decided by the first one.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from shardline.corpus.records import read_scan_report
from shardline.errors import FieldProblem, JobFileError
from shardline.results.delta import table_schema
from shardline.results.json_types import json_schema_type
from shardline.results.vectors import dimension_of, is_vector, read_dimension, vector_type
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
        return _with_dimension(store, plan, _decode(found))
    job = plan.job_file
    own = published_schema(job, _carry_types(store, plan))
    try:
        schema = fit_schema(own, table_schema(store, job.table))
    except ColumnChanged as error:
        raise changed_column(job, error) from error
    # a table that another job extends meanwhile must not change what this one writes: one winner
    store.put_once(plan.layout.published_schema, _encode(schema))
    return _decode(store.read(plan.layout.published_schema))


def _with_dimension(store: Store, plan: Plan, schema: Any) -> Any:
    """The schema with the length of the vectors, once it is known."""
    output = schema.field("output")
    if not is_vector(output.type) or dimension_of(output.type) is not None:
        return schema
    kind = vector_type(read_dimension(store, plan))
    return schema.set(schema.get_field_index("output"), output.with_type(kind))


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
    """The type of `output`: a string, what the JSON Schema maps to, or a vector."""
    import pyarrow as pa

    if job.kind == "embedding":
        return vector_type(job.parameters.get("dimensions"))
    schema = job.output.json_schema
    return pa.string() if schema is None else json_schema_type(schema)


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
    if is_vector(table) and is_vector(job) and None in (dimension_of(table), dimension_of(job)):
        return job if dimension_of(table) is None else table
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
