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
from shardline.results.chain import Chain, Replayed, WholeShard, read_cut
from shardline.results.columns import published_batches
from shardline.results.dead_letters import write_letters
from shardline.results.law import (
    count_ledger,
    count_rejected,
    job_law,
    shard_differences,
    shard_law,
)
from shardline.results.lines import output_reader, read_results, without_output
from shardline.results.schema import check_schema
from shardline.results.vectors import dimension_of, keep_dimension
from shardline.rows import Law
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


class ShardMerge(msgspec.Struct, frozen=True, omit_defaults=True):
    """What merge counted in one shard. `file` is None where all of it is dead letters."""

    shard: str
    law: Law
    file: MergedFile | None
    dead_letters: dict[str, int]
    dead_documents: int
    """Dead letters and the duplicates that hang on them."""
    lost_values: int
    """Values of structured answers that the table's types could not hold."""
    replayed: Replayed | None = None
    """Of a replay: what became of the dead letters that it started from."""


class MergeReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """`merge.json`: the law of the job and of each shard, and the files to publish."""

    job_id: str
    law: Law
    rows: int
    """Published rows: results, and duplicates whose request has a result."""
    dead_letters: dict[str, int]
    dead_documents: int
    lost_values: int
    shards: list[ShardMerge]
    replayed: Replayed | None = None

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
    _check_replayed(store, plan)
    schema = check_schema(store, plan)
    chain = Chain(store, plan, output_reader(plan.job_file, schema.field("output").type))
    merged = [merge_shard(store, plan, chain, number) for number in range(len(chain.shards))]
    report = _total(store, plan, merged)
    store.put_same(plan.layout.merge_report, msgspec.json.encode(report))
    log.info("job %s: %d rows merged into %d files", plan.job_id, report.rows, len(report.files))
    return report


def merge_shard(store: Store, plan: Plan, chain: Chain, number: int) -> ShardMerge:
    """Merge one shard of the whole job, or return what an earlier run counted of it.

    Raises:
        LawBroken: naming the shard and every difference.
    """
    entry = chain.shards[number]
    report = plan.layout.merged(entry.shard)
    if (found := store.read_or_none(report)) is not None:
        done = msgspec.json.decode(found, type=ShardMerge)
        if _is_there(store, plan, done):
            return done
    with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
        merged = _merge(store, plan, chain, number, Path(scratch))
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


def _check_replayed(store: Store, plan: Plan) -> None:
    """The law of the shards that a replay ran itself, before their lines take other lines' place."""
    if plan.replay is None:
        return
    for entry in read_shards(store, plan):
        with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
            try:
                ledger = count_ledger(store.fetch(plan.layout.ledger(entry.shard), Path(scratch)))
                results = store.fetch(plan.layout.results(entry.shard), Path(scratch))
            except ObjectNotFound as error:
                raise LawBroken(f"shard {entry.shard}: {error.path} is gone") from error
            if broken := shard_differences(entry, ledger, read_results(results, without_output)):
                raise LawBroken(f"job {plan.job_id}: {'; '.join(broken)}")


def _merge(store: Store, plan: Plan, chain: Chain, number: int, scratch: Path) -> ShardMerge:
    entry = chain.shards[number]
    try:
        ledger_path = store.fetch(plan.whole.ledger(entry.shard), scratch)
        schema, (results, replayed) = _read(store, plan, chain, number)
    except ObjectNotFound as error:
        raise LawBroken(f"shard {entry.shard}: {error.path} is gone") from error
    ledger = count_ledger(ledger_path)
    if broken := shard_differences(entry, ledger, results):
        raise LawBroken("; ".join(broken))
    dead = {name: end.reason for name, end in results.ended.items() if end.reason is not None}
    rows = ledger.documents - sum(ledger.asked[name] for name in dead)
    file = None
    if rows:
        target = scratch / "merged.parquet"
        plans = [link.plan for link in chain.links]
        batches = published_batches(plans, ledger_path, results.ended, schema)
        written = write_batches(target, schema, batches)
        if written != rows:
            raise LawBroken(f"shard {entry.shard}: {written} rows written, {rows} counted")
        file = _put_file(store, plan, number, target, rows)
    if dead and plan.replay is not None:
        ends = chain.dead_ends(number, dead)
        write_letters(store, plan, entry.shard, ledger_path, ends)
    return ShardMerge(
        shard=entry.shard,
        law=shard_law(ledger, results.ended.values()),
        file=file,
        dead_letters=_count(dead.values()),
        dead_documents=ledger.documents - rows,
        lost_values=results.lost_values,
        replayed=replayed if plan.replay is not None else None,
    )


def _read(store: Store, plan: Plan, chain: Chain, number: int) -> tuple[Any, WholeShard]:
    """A shard's results in the types of the job, which its first vector may decide."""
    schema = check_schema(store, plan)
    found = chain.read(number)
    if plan.job_file.kind == "embedding" and dimension_of(schema.field("output").type) is None:
        vectors = (end.output for end in found.results.ended.values() if end.reason is None)
        if (first := next(vectors, None)) is not None:
            keep_dimension(store, plan, first)
            # another shard may have decided at this moment: every line is held against what it said
            kind = check_schema(store, plan).field("output").type
            chain.use(output_reader(plan.job_file, kind))
            return _read(store, plan, chain, number)
    return schema, found


def _put_file(store: Store, plan: Plan, number: int, target: Path, rows: int) -> MergedFile:
    path = published_file(plan.job_id, plan.partition, number)
    content = target.read_bytes()
    store.put_same(f"{published(plan.job_file.table)}/{path}", content)
    return MergedFile(path, rows, len(content), hashlib.sha256(content).hexdigest())


def _total(store: Store, plan: Plan, merged: list[ShardMerge]) -> MergeReport:
    rejected = count_rejected(store, plan)
    law = job_law(store, plan, [shard.law for shard in merged], rejected.rows)
    planned = read_manifest(store, plan, plan.whole)
    broken = [*rejected.differences, *law.differences()]
    if law.documents != planned.documents:
        broken.append(f"{law.documents} documents in the ledgers, {planned.documents} planned")
    replayed = None
    if plan.replay is not None:
        replayed = sum((shard.replayed for shard in merged if shard.replayed), Replayed())
        broken += replayed.differences(read_cut(store, plan))
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
        replayed=replayed,
    )


def _count(reasons: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason] = counts.get(reason, 0) + 1
    return dict(sorted(counts.items()))
