"""merge_shards: join every document with its result, one shard at a time.

A document, its duplicates and its result are always in one shard, so memory is bounded by a shard
and cost is linear. The files are written where they will stay, under names of this job, and nobody
sees them before publish commits them. The same job writes the same bytes however often it merges.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shardline.errors import JobNotReady, LawBroken, ObjectNotFound
from shardline.layout import published, published_file
from shardline.results.columns import published_batches
from shardline.results.law import (
    count_ledger,
    count_rejected,
    job_law,
    shard_differences,
    shard_law,
)
from shardline.results.lines import ShardResults, output_reader, read_results
from shardline.results.schema import check_schema
from shardline.results.vectors import dimension_of, keep_dimension
from shardline.rows import Law, ShardEntry
from shardline.shards.manifest import read_manifest, read_shards
from shardline.shards.parquet import write_batches

if TYPE_CHECKING:
    from shardline.plan import Plan
    from shardline.store import Store

log = logging.getLogger(__name__)


class MergedFile(msgspec.Struct, frozen=True):
    """One published file; `path` is relative to the table."""

    path: str
    rows: int
    size_bytes: int
    sha256: str


class ShardMerge(msgspec.Struct, frozen=True):
    """What merge counted in one shard. `file` is None where all of it is dead letters."""

    shard: str
    law: Law
    file: MergedFile | None
    dead_letters: dict[str, int]
    dead_documents: int
    """Dead letters and the duplicates that hang on them."""
    lost_values: int
    """Values of structured answers that the table's types could not hold."""


class MergeReport(msgspec.Struct, frozen=True):
    """`merge.json`: the law of the job and of each shard, and the files to publish."""

    job_id: str
    law: Law
    rows: int
    """Published rows: results, and duplicates whose request has a result."""
    dead_letters: dict[str, int]
    dead_documents: int
    lost_values: int
    shards: list[ShardMerge]

    @property
    def files(self) -> list[MergedFile]:
        return [shard.file for shard in self.shards if shard.file is not None]


def merge_shards(store: Store, plan: Plan) -> MergeReport:
    """Merge all shards and check the law.

    Raises:
        JobNotReady: the job is not settled.
        LawBroken: naming each shard or file and its difference; nothing is published then.
        ValidationFailed: an answer that is no JSON where the job asks for it, or a vector of
            another length.
    """
    if (found := store.read_or_none(plan.layout.merge_report)) is not None:
        done = msgspec.json.decode(found, type=MergeReport)
        if all(_is_there(store, plan, shard) for shard in done.shards):
            return done
    if not store.exists(plan.layout.settlement):
        raise JobNotReady(f"job {plan.job_id}: it is not settled yet")
    merged = [
        merge_shard(store, plan, entry, number)
        for number, entry in enumerate(read_shards(store, plan))
    ]
    report = _total(store, plan, merged)
    store.put_same(plan.layout.merge_report, msgspec.json.encode(report))
    log.info("job %s: %d rows merged into %d files", plan.job_id, report.rows, len(report.files))
    return report


def merge_shard(store: Store, plan: Plan, entry: ShardEntry, number: int) -> ShardMerge:
    """Merge one shard, or return what an earlier run counted of it.

    Raises:
        LawBroken: naming the shard and every difference.
    """
    report = plan.layout.merged(entry.shard)
    if (found := store.read_or_none(report)) is not None:
        done = msgspec.json.decode(found, type=ShardMerge)
        if _is_there(store, plan, done):
            return done
    with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
        merged = _merge(store, plan, entry, number, Path(scratch))
    store.put_same(report, msgspec.json.encode(merged))
    return merged


def read_merge_report(store: Store, plan: Plan) -> MergeReport:
    """The report. Raises JobNotReady before the job is merged."""
    found = store.read_or_none(plan.layout.merge_report)
    if found is None:
        raise JobNotReady(f"job {plan.job_id}: it is not merged yet")
    return msgspec.json.decode(found, type=MergeReport)


def _is_there(store: Store, plan: Plan, merged: ShardMerge) -> bool:
    """Whether its file is still there: a vacuum of the table takes what no commit names yet."""
    if merged.file is None:
        return True
    return store.exists(f"{published(plan.job_file.table)}/{merged.file.path}")


def _merge(store: Store, plan: Plan, entry: ShardEntry, number: int, scratch: Path) -> ShardMerge:
    try:
        ledger_path = store.fetch(plan.layout.ledger(entry.shard), scratch)
        results_path = store.fetch(plan.layout.results(entry.shard), scratch)
    except ObjectNotFound as error:
        raise LawBroken(f"shard {entry.shard}: {error.path} is gone") from error
    (schema, results), ledger = _read(store, plan, results_path), count_ledger(ledger_path)
    if broken := shard_differences(entry, ledger, results):
        raise LawBroken("; ".join(broken))
    dead = {name: end.reason for name, end in results.ended.items() if end.reason is not None}
    rows = ledger.documents - sum(ledger.asked[name] for name in dead)
    file = None
    if rows:
        target = scratch / "merged.parquet"
        written = write_batches(
            target, schema, published_batches(plan, ledger_path, results.ended, schema)
        )
        if written != rows:
            raise LawBroken(f"shard {entry.shard}: {written} rows written, {rows} counted")
        file = _put_file(store, plan, number, target, rows)
    return ShardMerge(
        shard=entry.shard,
        law=shard_law(ledger, results.ended.values()),
        file=file,
        dead_letters=_count(dead.values()),
        dead_documents=ledger.documents - rows,
        lost_values=results.lost_values,
    )


def _read(store: Store, plan: Plan, path: Path) -> tuple[Any, ShardResults]:
    """A shard's results in the types of the job, which its first vector may decide."""
    schema = check_schema(store, plan)
    kind = schema.field("output").type
    results = read_results(path, output_reader(plan.job_file, kind))
    if plan.job_file.kind == "embedding" and dimension_of(kind) is None:
        vectors = (end.output for end in results.ended.values() if end.reason is None)
        if (first := next(vectors, None)) is not None:
            keep_dimension(store, plan, first)
            # another shard may have decided at this moment: every line is held against what it said
            return _read(store, plan, path)
    return schema, results


def _put_file(store: Store, plan: Plan, number: int, target: Path, rows: int) -> MergedFile:
    path = published_file(plan.job_id, plan.partition, number)
    content = target.read_bytes()
    store.put_same(f"{published(plan.job_file.table)}/{path}", content)
    return MergedFile(path, rows, len(content), hashlib.sha256(content).hexdigest())


def _total(store: Store, plan: Plan, merged: list[ShardMerge]) -> MergeReport:
    rejected = count_rejected(store, plan)
    law = job_law(store, plan, [shard.law for shard in merged], rejected.rows)
    planned = read_manifest(store, plan)
    broken = [*rejected.differences, *law.differences()]
    if law.documents != planned.documents:
        broken.append(f"{law.documents} documents in the ledgers, {planned.documents} planned")
    if broken:
        raise LawBroken(f"job {plan.job_id}: {'; '.join(broken)}")
    reasons: dict[str, int] = {}
    for shard in merged:
        for reason, n in shard.dead_letters.items():
            reasons[reason] = reasons.get(reason, 0) + n
    return MergeReport(
        job_id=plan.job_id,
        law=law,
        rows=sum(shard.file.rows for shard in merged if shard.file),
        dead_letters=dict(sorted(reasons.items())),
        dead_documents=sum(shard.dead_documents for shard in merged),
        lost_values=sum(shard.lost_values for shard in merged),
        shards=merged,
    )


def _count(reasons: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason] = counts.get(reason, 0) + 1
    return dict(sorted(counts.items()))
