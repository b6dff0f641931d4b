"""What validation looks at: one row of counts per merged file, and keys that must not repeat.

DuckDB enters here. It reads files that we wrote, one at a time, so memory is bounded by a file. The
keys of all rows, 16 bytes each, lie in a database on disk; repeats are looked for in slices of a
bounded number of keys, and what only collides is told from what repeats by looking again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shardline.results.vectors import count_odd_vectors, dimension_of, is_vector
from shardline.shards.parquet import file_schema, read_batches

_SLICE = 50_000_000
_COLUMNS = [
    "document_id",
    "output",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "fingerprint",
    "duplicate_of",
    "source",
    "row",
    "job_id",
]
_COUNTS = """
SELECT count(*) AS rows,
    count(*) FILTER (document_id IS NULL OR source IS NULL OR "row" IS NULL OR fingerprint IS NULL)
        AS null_keys,
    count(*) FILTER ($output_required AND output IS NULL) AS null_outputs,
    count(*) FILTER ($choices IS NOT NULL AND NOT list_contains($choices, output::VARCHAR))
        AS foreign_outputs,
    count(*) FILTER (NOT list_contains($finishes, coalesce(finish_reason, '')))
        AS odd_finishes,
    count(*) FILTER (prompt_tokens < 0 OR completion_tokens < 0) AS negative_tokens,
    count(*) FILTER (job_id IS NULL OR NOT list_contains($job_ids, job_id)) AS foreign_rows
FROM merged
"""
# a duplicate may have the id of its original: only ids of originals are unique
_KEYS = """
INSERT INTO keys
SELECT CASE WHEN duplicate_of IS NULL THEN hash(document_id) END, hash(source, "row") FROM merged
"""


class Aggregates:
    """Adds merged files up. Use as a context manager; `folder` holds its database.

    `finishes` are the reasons that a whole answer may have, "" for none at all.
    """

    def __init__(
        self,
        folder: Path,
        *,
        job_ids: list[str],
        choices: list[str] | None,
        finishes: list[str],
        output_required: bool,
    ) -> None:
        import duckdb

        self._parameters = {
            "job_ids": job_ids,
            "choices": choices,
            "finishes": finishes,
            "output_required": output_required,
        }
        self._connection = duckdb.connect(folder / "keys.duckdb")
        self._connection.execute(
            "SET memory_limit='1GB'; SET threads=2; SET enable_progress_bar=false"
        )
        self._connection.execute("CREATE TABLE keys (id UBIGINT, place UBIGINT)")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._connection.close()

    def add(self, path: Path, schema: Any) -> dict[str, int]:
        """Count one file; `schema_differs` is 1 where its columns are not the planned ones.

        `odd_vectors` is there for embeddings only.
        """
        self._load(path)
        counted = self._connection.execute(_COUNTS, self._parameters)
        names = [column[0] for column in counted.description]
        counts = dict(zip(names, counted.fetchone(), strict=True))
        self._connection.execute(_KEYS)
        counts |= {"schema_differs": int(not file_schema(path).equals(schema))}
        kind = schema.field("output").type
        if is_vector(kind):
            counts["odd_vectors"] = count_odd_vectors(path, dimension_of(kind))
        return counts

    def suspects(self, column: str) -> set[int]:
        """Hashes in `id` or `place` that occur more than once."""
        rows = self._connection.execute("SELECT count(*) FROM keys").fetchone()[0]
        slices = rows // _SLICE + 1
        query = (
            f"SELECT {column} FROM keys WHERE {column} % {slices} = ? "  # noqa: S608  ours
            "GROUP BY 1 HAVING count(*) > 1"
        )
        return {
            found[0]
            for n in range(slices)
            for found in self._connection.execute(query, [n]).fetchall()
        }

    def suspect_rows(
        self, path: Path, ids: set[int], places: set[int]
    ) -> Iterator[tuple[str | None, tuple[str, int]]]:
        """(document id of an original or None, place) of the rows of a file that are suspect."""
        self._load(path)
        query = """
            SELECT CASE WHEN duplicate_of IS NULL THEN document_id END, source, "row" FROM merged
            WHERE (duplicate_of IS NULL AND list_contains($ids, hash(document_id)))
               OR list_contains($places, hash(source, "row"))
        """
        found = self._connection.execute(query, {"ids": sorted(ids), "places": sorted(places)})
        for document_id, source, row in found.fetchall():
            yield document_id, (source, row)

    def _load(self, path: Path) -> None:
        """Through Arrow, never by name: DuckDB would read brackets in a path as a glob."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = pa.Table.from_batches(
            read_batches(path, _COLUMNS), file_schema(path).empty_table().select(_COLUMNS).schema
        )
        output = table.schema.get_field_index("output")
        if is_vector(table.schema.field(output).type):
            # DuckDB only has to know whether it is there
            there = pc.if_else(pc.is_valid(table.column(output)), "", pa.scalar(None, pa.string()))
            table = table.set_column(output, "output", there)
        self._connection.register("arrow_rows", table)
        self._connection.execute("CREATE OR REPLACE TEMP TABLE merged AS SELECT * FROM arrow_rows")
        self._connection.unregister("arrow_rows")
