"""The law, counted from the files themselves (PROTOCOL 6).

Merge counts here before it writes a row, and verify counts again at any later time. A difference is
always named with its shard or file: "a row is missing" helps nobody at 3 a.m.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from shardline.corpus.records import read_id_report, read_scan_report
from shardline.errors import ObjectNotFound
from shardline.rows import Law, ShardEntry
from shardline.shards.ledger import read_ledger

if TYPE_CHECKING:
    from pathlib import Path

    from shardline.plan import Plan
    from shardline.results.lines import Ended, ShardResults
    from shardline.store import Store


class LedgerCount(NamedTuple):
    """What a ledger says by itself."""

    documents: int
    originals: int
    asked: dict[str, int]
    """Request → its documents."""


class RejectedCount(NamedTuple):
    """Rejected rows, counted from their files, and each file that is not as its scan left it."""

    rows: int
    differences: list[str]


def count_ledger(path: Path) -> LedgerCount:
    """Count documents, originals, and documents per request."""
    documents = originals = 0
    asked: dict[str, int] = {}
    for batch in read_ledger(path, ["fingerprint", "duplicate_of"]):
        for fingerprint in batch["fingerprint"]:
            asked[fingerprint] = asked.get(fingerprint, 0) + 1
        documents += len(batch["fingerprint"])
        originals += batch["duplicate_of"].count(None)
    return LedgerCount(documents, originals, asked)


def shard_law(ledger: LedgerCount, ended: Iterable[Ended]) -> Law:
    """The counts of one shard; it has no rows but documents."""
    reasons = [end.reason for end in ended]
    results = reasons.count(None)
    return Law(
        rows_read=ledger.documents,
        documents=ledger.documents,
        rejected=0,
        left_out=0,
        results=results,
        duplicates=ledger.documents - ledger.originals,
        dead_letters=len(reasons) - results,
    )


def shard_differences(entry: ShardEntry, ledger: LedgerCount, results: ShardResults) -> list[str]:
    """Everything that breaks the law in one shard; empty when it holds."""
    missing = [name for name in ledger.asked if name not in results.ended]
    foreign = [name for name in results.ended if name not in ledger.asked]
    found = [
        _named(missing, "requests without a line in results"),
        _named(results.doubled, "doubled lines in results"),
        _named(foreign, "lines in results that nobody asked for"),
        _unequal("documents in the ledger", ledger.documents, entry.documents),
        _unequal("originals in the ledger", ledger.originals, entry.requests),
        *shard_law(ledger, results.ended.values()).differences(),
    ]
    return [f"shard {entry.shard}: {difference}" for difference in found if difference]


def count_rejected(store: Store, plan: Plan) -> RejectedCount:
    """Count the lines of all files of rejected rows, by planned name."""
    report = read_id_report(store, plan)
    planned = [
        (plan.whole.rejected(split), sum(read_scan_report(store, plan, split).rejected.values()))
        for split in range(len(plan.splits))
    ]
    rows, differences = 0, []
    for path, expected in [*planned, (plan.whole.rejected_ids, report.conflicts)]:
        counted = _count_lines(store, path)
        rows += counted or 0
        if counted is None and expected:
            differences.append(f"{path}: is gone, with {expected} rejected rows")
        elif counted is not None and counted != expected:
            differences.append(f"{path}: holds {counted} rejected rows, {expected} were written")
    return RejectedCount(rows, differences)


def job_law(store: Store, plan: Plan, shards: Iterable[Law], rejected: int) -> Law:
    """The counts of the job: the shards' sums, the rejected rows as counted, the rows as read."""
    laws = list(shards)
    return Law(
        rows_read=sum(
            read_scan_report(store, plan, split).rows_read for split in range(len(plan.splits))
        ),
        documents=sum(law.documents for law in laws),
        rejected=rejected,
        left_out=read_id_report(store, plan).left_out,
        results=sum(law.results for law in laws),
        duplicates=sum(law.duplicates for law in laws),
        dead_letters=sum(law.dead_letters for law in laws),
    )


def _count_lines(store: Store, path: str) -> int | None:
    try:
        return store.read(path).count(b"\n")
    except ObjectNotFound:
        return None


def _named(names: list[str], what: str) -> str:
    return f"{len(names)} {what}, first {min(names)}" if names else ""


def _unequal(what: str, counted: int, planned: int) -> str:
    return "" if counted == planned else f"{counted} {what}, {planned} in the manifest"
