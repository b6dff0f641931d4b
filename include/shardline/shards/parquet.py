"""Parquet files whose bytes depend on their rows alone, so that a retried stage writes the same.

PyArrow enters the shards and results rooms here. Every option that changes bytes is given, and no
default of the library is trusted to stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROW_GROUP = 50_000
_OPTIONS: dict[str, Any] = {
    "version": "2.6",
    "data_page_version": "1.0",
    "compression": "zstd",
    "compression_level": 3,
    "use_dictionary": True,
    "write_statistics": True,
    "data_page_size": 1 << 20,
    "dictionary_pagesize_limit": 1 << 20,
    "store_schema": False,
}
_ARROW_NAMES = {
    "null": "null",
    "string": "string",
    "int64": "int64",
    "double": "float64",
    "bool": "bool_",
}


def arrow_type(name: str) -> Any:
    """The Arrow type of a carried column: string, int64, double or bool."""
    import pyarrow as pa

    return getattr(pa, _ARROW_NAMES[name])()


def make_schema(fields: Iterable[tuple[str, Any]]) -> Any:
    """An Arrow schema of nullable columns."""
    import pyarrow as pa

    return pa.schema(list(fields))


def make_batch(columns: dict[str, list[Any]], schema: Any) -> Any:
    """A record batch from Python values; raises pyarrow.ArrowInvalid where one does not fit."""
    import pyarrow as pa

    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.record_batch(arrays, schema=schema)


def write_batches(path: Path, schema: Any, batches: Iterable[Any]) -> int:
    """Write batches of up to ROW_GROUP rows, one row group each; returns the number of rows."""
    import pyarrow.parquet as pq

    rows = 0
    with pq.ParquetWriter(path, schema, **_options(schema)) as writer:
        for batch in batches:
            writer.write_batch(batch, row_group_size=ROW_GROUP)
            rows += batch.num_rows
    return rows


def _options(schema: Any) -> dict[str, Any]:
    """Parquet has no lists of a fixed size: that they are, Arrow's own schema in the file says."""
    import pyarrow.types as pt

    fixed = {field.name for field in schema if pt.is_fixed_size_list(field.type)}
    if not fixed:
        return _OPTIONS
    # hardly a number of a vector comes twice
    words = [name for name in schema.names if name not in fixed]
    return _OPTIONS | {"store_schema": True, "use_dictionary": words}


def read_batches(path: Path, columns: list[str] | None = None) -> Iterator[Any]:
    """The row groups of a file, in order, in bounded pieces."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(batch_size=ROW_GROUP, columns=columns, use_threads=False)


def file_schema(path: Path) -> Any:
    """The Arrow schema of a file."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return file.schema_arrow


def parquet_errors() -> tuple[type[Exception], ...]:
    """What PyArrow raises of a file that is no Parquet, or was cut."""
    import pyarrow as pa

    return (pa.ArrowException, OSError)
