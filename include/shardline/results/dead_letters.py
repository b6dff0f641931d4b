"""`dead_letters/{shard}.jsonl`: a copy for people, one line per document that has no result.

Nothing counts from it: the dead letters are the error lines of `results` (PROTOCOL 7). Of a replay
it is the whole job's list again: what failed once more, and what was not run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from shardline.rows import ErrorBody
from shardline.segments import Segments
from shardline.shards.ledger import read_ledger

if TYPE_CHECKING:
    from shardline.layout import JobLayout
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


class DeadEnd(NamedTuple):
    """Why a request has no result, and the attempt that said so; None where its shard was sealed."""

    error: ErrorBody
    attempt: str | None


class _Line(msgspec.Struct):
    custom_id: str
    error: ErrorBody | None = None


def write_dead_letters(store: Store, plan: Plan, shard: str) -> None:
    """Write the copy of one shard; overwrites, since it says nothing that `results` does not."""
    with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
        folder = Path(scratch)
        ends = read_dead_ends(store, plan.layout, shard, folder)
        ledger = store.fetch(plan.layout.ledger(shard), folder)
        write_letters(store, plan, shard, ledger, ends)


def read_dead_ends(
    store: Store, layout: JobLayout, shard: str, scratch: Path
) -> dict[str, DeadEnd]:
    """The error lines of a shard's results by request."""
    decoder = msgspec.json.Decoder(_Line)
    with store.fetch(layout.results(shard), scratch).open("rb") as file:
        lines = (decoder.decode(line) for line in file)
        errors = {line.custom_id: line.error for line in lines if line.error is not None}
    if not errors:
        return {}
    segments = Segments(store, layout, shard, scratch)
    segments.refresh()
    said = {name: line.segment.attempt for name, line in segments.lines.items() if line.is_dead}
    return {name: DeadEnd(error, said.get(name)) for name, error in errors.items()}


def write_letters(
    store: Store, plan: Plan, shard: str, ledger: Path, ends: Mapping[str, DeadEnd]
) -> None:
    """Write the copy of one shard from what is known of its requests without a result."""
    with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
        target = Path(scratch) / "dead_letters"
        with target.open("wb") as out:
            for letter in _letters(ledger, ends):
                out.write(msgspec.json.encode(letter) + b"\n")
        store.write(plan.layout.dead_letters(shard), target)


def _letters(ledger: Path, ends: Mapping[str, DeadEnd]) -> Iterator[DeadLetter]:
    for batch in read_ledger(ledger, _COLUMNS):
        for place in zip(*(batch[name] for name in _COLUMNS), strict=True):
            document_id, source, row, custom_id, duplicate_of = place
            if (end := ends.get(custom_id)) is None:
                continue
            yield DeadLetter(
                document_id=document_id,
                source=source,
                row=row,
                reason=end.error.code,
                message=end.error.message,
                attempt=end.attempt,
                custom_id=custom_id,
                duplicate_of=duplicate_of,
                raw_output=end.error.raw_output,
            )
