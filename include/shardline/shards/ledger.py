"""The ledger of a shard: where every document of it went.

One row per document, in the order of the shard's requests and, for each request, in document order,
so the original stands first and its duplicates follow. Merge and replay join through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from shardline.corpus.carried import cast_carried
from shardline.shards.parquet import (
    ROW_GROUP,
    arrow_type,
    make_batch,
    make_schema,
    read_batches,
    write_batches,
)


class LedgerRow(NamedTuple):
    """One document: its place in the corpus, its request, and the columns it carries along."""

    document_id: str
    source: str
    row: int
    fingerprint: str
    """The custom_id of its request."""
    duplicate_of: str | None
    """The document id of the original, for a duplicate."""
    line: int
    """The line (from 0) of its request in the shard file."""
    carry: Mapping[str, Any]


_COLUMNS = (
    ("document_id", "string"),
    ("source", "string"),
    ("row", "int64"),
    ("fingerprint", "string"),
    ("duplicate_of", "string"),
)


def ledger_name(carried: str) -> str:
    """The ledger's column for a carried one: its own name, unless the ledger has that itself."""
    return f"carry:{carried}" if carried == "line" else carried


def ledger_schema(carry_types: Mapping[str, str]) -> Any:
    """The Arrow schema of a ledger with these carried columns."""
    import pyarrow as pa

    own = [(name, arrow_type(kind)) for name, kind in _COLUMNS]
    carried = [(ledger_name(name), arrow_type(kind)) for name, kind in carry_types.items()]
    return make_schema([*own, ("line", pa.int32()), *carried])


def write_ledger(path: Path, rows: Iterable[LedgerRow], carry_types: Mapping[str, str]) -> int:
    """Write a ledger; returns the number of documents."""
    schema = ledger_schema(carry_types)
    batches = (_batch(part, carry_types, schema) for part in _batched(rows))
    return write_batches(path, schema, batches)


def read_ledger(path: Path, columns: list[str] | None = None) -> Iterator[dict[str, list[Any]]]:
    """Batches of columns, in the order of the file."""
    for batch in read_batches(path, columns):
        yield batch.to_pydict()


def _batch(rows: list[LedgerRow], carry_types: Mapping[str, str], schema: Any) -> Any:
    columns: dict[str, list[Any]] = {
        name: [getattr(row, name) for row in rows] for name in (*dict(_COLUMNS), "line")
    }
    for name, kind in carry_types.items():
        columns[ledger_name(name)] = [cast_carried(row.carry.get(name), kind) for row in rows]
    return make_batch(columns, schema)


def _batched(rows: Iterable[LedgerRow]) -> Iterator[list[LedgerRow]]:
    left = iter(rows)
    while part := list(islice(left, ROW_GROUP)):
        yield part
