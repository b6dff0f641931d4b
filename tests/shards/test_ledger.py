"""The ledger keeps rows, order and types."""

from __future__ import annotations

from pathlib import Path

from shardline.shards.ledger import LedgerRow, ledger_schema, read_ledger, write_ledger
from shardline.shards.parquet import ROW_GROUP, file_schema

TYPES = {"queue": "string", "score": "double", "count": "int64", "flag": "bool"}


def rows(n: int) -> list[LedgerRow]:
    carry = {"queue": "q", "score": 1, "count": 2**62, "flag": None}
    return [LedgerRow(f"d{i}", "a.jsonl", i, f"f{i}", None, i, carry) for i in range(n)]


def test_what_is_written_is_read_with_its_types(tmp_path: Path) -> None:
    path = tmp_path / "ledger.parquet"
    assert write_ledger(path, rows(3), TYPES) == 3
    (batch,) = read_ledger(path)
    assert batch["document_id"] == ["d0", "d1", "d2"]
    assert batch["score"] == [1.0] * 3
    assert batch["count"] == [2**62] * 3
    assert file_schema(path).equals(ledger_schema(TYPES))


def test_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write_ledger(one, iter(rows(100)), TYPES)
    write_ledger(two, rows(100), TYPES)
    assert one.read_bytes() == two.read_bytes()


def test_a_long_ledger_is_read_in_bounded_pieces_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "ledger.parquet"
    n = 2 * ROW_GROUP + 5
    assert write_ledger(path, rows(n), {}) == n
    batches = list(read_ledger(path, ["row"]))
    assert max(len(batch["row"]) for batch in batches) <= ROW_GROUP
    assert [row for batch in batches for row in batch["row"]] == list(range(n))
