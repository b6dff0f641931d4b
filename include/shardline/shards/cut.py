"""Cut a bucket of the spill into shards: de-duplicated, sorted by length, equal in size.

Equal documents have equal length and fingerprint, so a document, its duplicates and its request
meet in one bucket and one shard. Every run writes the same bytes, so a retry that comes after a
crash at any put goes on where the first one stopped.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from shardline.corpus.records import read_id_report
from shardline.corpus.requests import custom_id, request_line
from shardline.corpus.spill import SpillReader, SpillRecord
from shardline.errors import LawBroken
from shardline.layout import shard_id
from shardline.rows import ShardEntry
from shardline.shards.ledger import LedgerRow, write_ledger

if TYPE_CHECKING:
    from shardline.job import JobFile
    from shardline.plan import Plan
    from shardline.store import Store

log = logging.getLogger(__name__)


class CutRequest(NamedTuple):
    """One request and its documents; the first is the original. Sorts by (length, custom_id)."""

    length: int
    custom_id: str
    line: bytes
    documents: list[SpillRecord]


def cut_shards(store: Store, plan: Plan, bucket_set: int) -> list[ShardEntry]:
    """Write the shards of one set of buckets, with ledgers and sidecars, and list them.

    Raises:
        LawBroken: a document of the spill whose request body is nowhere.
        ObjectConflict: an earlier run wrote other bytes.
    """
    report = plan.layout.bucket_report(bucket_set)
    if (done := store.read_or_none(report)) is not None:
        return msgspec.json.decode(done, type=list[ShardEntry])
    carry_types = read_id_report(store, plan).carry_types
    first, last = plan.bucket_sets[bucket_set]
    spill = SpillReader(store, plan, first, last)
    entries: list[ShardEntry] = []
    for bucket in range(first, last):
        requests = group_requests(spill.bucket(bucket), plan.job_file)
        entries += _write_bucket(store, plan, bucket, requests, carry_types)
    store.put_same(report, msgspec.json.format(msgspec.json.encode(entries), indent=1))
    log.info("bucket set %d: %d shards cut", bucket_set, len(entries))
    return entries


def group_requests(records: Iterable[SpillRecord], job: JobFile) -> list[CutRequest]:
    """One request for each fingerprint (or each document), sorted by length and id.

    `records` come in document order, so the first of each fingerprint is the original.

    Raises:
        LawBroken: no record of a fingerprint has the body.
    """
    groups: dict[bytes, list[SpillRecord]] = {}
    bodies: dict[bytes, bytes] = {}
    for record in records:
        groups.setdefault(record.fingerprint, []).append(record)
        if record.body is not None:
            bodies[record.fingerprint] = record.body
    requests: list[CutRequest] = []
    for fingerprint, documents in groups.items():
        body = bodies.pop(fingerprint, None)
        if body is None:
            first = documents[0]
            raise LawBroken(f"{first.source} row {first.row}: the spill has no body for it")
        shared = job.corpus.dedupe == "exact"
        for own in [documents] if shared else [[document] for document in documents]:
            name = custom_id(job, fingerprint, own[0].source, own[0].row)
            requests.append(CutRequest(len(body), name, request_line(job, body, name), own))
    return sorted(requests, key=lambda request: request[:2])


def even_cuts(sizes: Sequence[int], max_requests: int, max_bytes: int) -> list[tuple[int, int]]:
    """Cut a row of lines into the fewest ranges under both limits, and those as equal as they go.

    Half of a line's weight is its share of the bytes, half its share of the requests, since a
    shard's time is made of both. Where equal weights would exceed a limit the ranges are filled to
    the limit instead: that happens only where they are nearly full anyway.
    """
    filled = _fill([0, *accumulate(sizes)], max_requests, max_bytes)
    total = sum(sizes)
    weights = [0, *accumulate(size * len(sizes) + total for size in sizes)]
    marks = [bisect_left(weights, weights[-1] * k / len(filled)) for k in range(1, len(filled))]
    cuts = list(pairwise([0, *marks, len(sizes)])) if filled else []
    fits = all(
        0 < last - first <= max_requests and sum(sizes[first:last]) <= max_bytes
        for first, last in cuts
    )
    return cuts if fits else filled


def _fill(ends: Sequence[int], max_requests: int, max_bytes: int) -> list[tuple[int, int]]:
    """Fill range after range up to the limits; a line that alone exceeds them stands alone."""
    cuts: list[tuple[int, int]] = []
    start = 0
    while start < len(ends) - 1:
        by_bytes = bisect_right(ends, ends[start] + max_bytes) - 1
        end = max(start + 1, min(start + max_requests, by_bytes))
        cuts.append((start, end))
        start = end
    return cuts


def _write_bucket(
    store: Store,
    plan: Plan,
    bucket: int,
    requests: list[CutRequest],
    carry_types: dict[str, str],
) -> list[ShardEntry]:
    limits = plan.job_file.shards
    sizes = [len(request.line) for request in requests]
    cuts = even_cuts(sizes, limits.max_requests, limits.max_bytes)
    return [
        _write_shard(store, plan, shard_id(bucket, k), requests[first:last], carry_types)
        for k, (first, last) in enumerate(cuts)
    ]


def _write_shard(
    store: Store, plan: Plan, shard: str, requests: list[CutRequest], carry_types: dict[str, str]
) -> ShardEntry:
    content = b"".join(request.line for request in requests)
    entry = ShardEntry(
        shard=shard,
        requests=len(requests),
        documents=sum(len(request.documents) for request in requests),
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        min_length=requests[0].length,
        max_length=requests[-1].length,
    )
    store.put_same(plan.layout.shard(shard), content)
    with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
        ledger = Path(scratch) / "ledger.parquet"
        write_ledger(ledger, _ledger_rows(requests), carry_types)
        store.put_same(plan.layout.ledger(shard), ledger)
    store.put_same(plan.layout.sidecar(shard), msgspec.json.encode(entry))
    return entry


def _ledger_rows(requests: list[CutRequest]) -> Iterator[LedgerRow]:
    for line, request in enumerate(requests):
        original = request.documents[0]
        for document in request.documents:
            yield LedgerRow(
                document_id=document.document_id,
                source=document.source,
                row=document.row,
                fingerprint=request.custom_id,
                duplicate_of=None if document is original else original.document_id,
                line=line,
                carry=document.carry,
            )
