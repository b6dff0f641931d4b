"""`dead_letters/{shard}.jsonl`: a copy for people, one line per document that has no result.

Nothing counts from it: the dead letters are the error lines of `results` (PROTOCOL 7).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shardline.rows import ErrorBody
from shardline.segments import Segments
from shardline.shards.ledger import read_ledger

if TYPE_CHECKING:
    from shardline.plan import Plan
    from shardline.store import Store

_COLUMNS = ["document_id", "source", "row", "fingerprint", "duplicate_of"]


class DeadLetter(msgspec.Struct, frozen=True):
    """A document without a result. `attempt` is None where the shard was sealed."""

    document_id: str
    source: str
    row: int
    reason: str
    message: str
    attempt: str | None
    custom_id: str
    duplicate_of: str | None
    raw_output: str | None


class _Line(msgspec.Struct):
    custom_id: str
    error: ErrorBody | None = None


def write_dead_letters(store: Store, plan: Plan, shard: str) -> None:
    """Write the copy of one shard; overwrites, since it says nothing that `results` does not."""
    with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
        _write(store, plan, shard, Path(scratch))


def _write(store: Store, plan: Plan, shard: str, scratch: Path) -> None:
    errors = _errors(store.fetch(plan.layout.results(shard), scratch))
    segments = Segments(store, plan.layout, shard, scratch)
    segments.refresh()
    target = scratch / "dead_letters"
    with target.open("wb") as out:
        for letter in _letters(store.fetch(plan.layout.ledger(shard), scratch), errors, segments):
            out.write(msgspec.json.encode(letter) + b"\n")
    store.write(plan.layout.dead_letters(shard), target)


def _errors(results: Path) -> dict[str, ErrorBody]:
    decoder = msgspec.json.Decoder(_Line)
    with results.open("rb") as file:
        lines = (decoder.decode(line) for line in file)
        return {line.custom_id: line.error for line in lines if line.error is not None}


def _letters(
    ledger: Path, errors: dict[str, ErrorBody], segments: Segments
) -> Iterator[DeadLetter]:
    for batch in read_ledger(ledger, _COLUMNS):
        for place in zip(*(batch[name] for name in _COLUMNS), strict=True):
            document_id, source, row, custom_id, duplicate_of = place
            if (error := errors.get(custom_id)) is None:
                continue
            line = segments.lines.get(custom_id)
            yield DeadLetter(
                document_id=document_id,
                source=source,
                row=row,
                reason=error.code,
                message=error.message,
                attempt=line.segment.attempt if line else None,
                custom_id=custom_id,
                duplicate_of=duplicate_of,
                raw_output=error.raw_output,
            )
