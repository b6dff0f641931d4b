"""The manifest: a job's shards and totals, written once when the last of them is cut.

The list is `shards.parquet`; the manifest holds its hash. Here the law's first equation is checked
for the first time, before any model runs: rows read = documents + rejected rows + left out.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shardline.corpus.records import read_id_report
from shardline.errors import JobNotReady, LawBroken
from shardline.rows import Law, Manifest, ShardEntry
from shardline.shards.parquet import (
    arrow_type,
    make_batch,
    make_schema,
    read_batches,
    write_batches,
)

if TYPE_CHECKING:
    from shardline.layout import JobLayout
    from shardline.plan import Plan
    from shardline.store import Store

log = logging.getLogger(__name__)

_TEXT = ("shard", "sha256")
_COLUMNS = ShardEntry.__struct_fields__


def write_manifest(store: Store, plan: Plan) -> Manifest:
    """Put `shards.parquet` and `manifest.json` from the reports of all bucket sets.

    Raises:
        JobNotReady: a bucket set is not cut yet.
        LawBroken: rows read are not documents + rejected rows + left out, or a shard comes twice.
    """
    if (done := store.read_or_none(plan.layout.manifest)) is not None:
        return msgspec.json.decode(done, type=Manifest)
    entries = sorted(_cut_entries(store, plan), key=lambda entry: entry.shard)
    names = [entry.shard for entry in entries]
    if len(set(names)) < len(names):
        twice = next(a for a, b in pairwise(names) if a == b)
        raise LawBroken(f"job {plan.job_id}: {twice} was cut from two buckets")
    manifest = _put(store, plan, entries, lambda sha256: _total(store, plan, entries, sha256))
    log.info("job %s: %d documents in %d shards", plan.job_id, manifest.documents, manifest.shards)
    return manifest


def write_replay_manifest(store: Store, plan: Plan, entries: list[ShardEntry]) -> Manifest:
    """Put the same two of a replay: its own shards, beside the rows that its parent has read."""
    whole = read_manifest(store, plan, plan.whole)
    documents, requests = sum(e.documents for e in entries), sum(e.requests for e in entries)

    def total(table_sha256: str) -> Manifest:
        return msgspec.structs.replace(
            whole,
            job_id=plan.job_id,
            documents=documents,
            requests=requests,
            duplicates=documents - requests,
            shards=len(entries),
            size_bytes=sum(entry.size_bytes for entry in entries),
            shard_table_sha256=table_sha256,
            parent=whole.job_id,
        )

    return _put(store, plan, entries, total)


def _put(
    store: Store, plan: Plan, entries: list[ShardEntry], total: Callable[[str], Manifest]
) -> Manifest:
    table = _shard_table(entries)
    manifest = total(hashlib.sha256(table).hexdigest())
    store.put_same(plan.layout.shard_table, table)
    store.put_same(plan.layout.manifest, msgspec.json.format(msgspec.json.encode(manifest)))
    return manifest


def read_manifest(store: Store, plan: Plan, layout: JobLayout | None = None) -> Manifest:
    """The manifest; of a replay's parent with `plan.whole`. Raises JobNotReady before the cut."""
    layout = layout or plan.layout
    found = store.read_or_none(layout.manifest)
    if found is None:
        raise JobNotReady(f"job {layout.job_id}: its shards are not cut yet")
    return msgspec.json.decode(found, type=Manifest)


def read_shards(store: Store, plan: Plan, layout: JobLayout | None = None) -> list[ShardEntry]:
    """All shards, sorted by name; the index of a shard is its number.

    Those that the job runs; with `plan.whole` those that it publishes. Only a replay's differ.

    Raises:
        JobNotReady: the shards are not cut yet.
        LawBroken: the list is not the one that the manifest was written for.
    """
    return [
        msgspec.convert(row, ShardEntry)
        for batch in _read_table(store, plan, layout or plan.layout)
        for row in batch.to_pylist()
    ]


def read_shard_name(store: Store, plan: Plan, number: int) -> str:
    """The name of one shard that the job runs: its task reads no more of the list.

    Raises: as `read_shards`; IndexError where there is no such number.
    """
    first = 0
    for batch in _read_table(store, plan, plan.layout, ["shard"]):
        if number < first + batch.num_rows:
            return str(batch.column(0)[number - first])
        first += batch.num_rows
    raise IndexError(f"job {plan.job_id}: there is no shard number {number}, it has {first}")


def _read_table(
    store: Store, plan: Plan, layout: JobLayout, columns: list[str] | None = None
) -> Iterator[Any]:
    expected = read_manifest(store, plan, layout).shard_table_sha256
    table = store.read(layout.shard_table)
    if hashlib.sha256(table).hexdigest() != expected:
        raise LawBroken(f"{layout.shard_table}: its sha256 is not the manifest's")
    with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
        path = Path(scratch) / "shards.parquet"
        path.write_bytes(table)
        yield from read_batches(path, columns)


def _cut_entries(store: Store, plan: Plan) -> list[ShardEntry]:
    entries: list[ShardEntry] = []
    for bucket_set in range(len(plan.bucket_sets)):
        found = store.read_or_none(plan.layout.bucket_report(bucket_set))
        if found is None:
            raise JobNotReady(f"job {plan.job_id}: bucket set {bucket_set} is not cut yet")
        entries += msgspec.json.decode(found, type=list[ShardEntry])
    return entries


def _total(store: Store, plan: Plan, entries: list[ShardEntry], table_sha256: str) -> Manifest:
    ids = read_id_report(store, plan)
    documents = sum(entry.documents for entry in entries)
    requests = sum(entry.requests for entry in entries)
    law = Law(
        rows_read=ids.rows_read,
        documents=documents,
        rejected=ids.rejected,
        left_out=ids.left_out,
        results=requests,
        duplicates=documents - requests,
        dead_letters=0,
    )
    if broken := law.differences():
        raise LawBroken(f"job {plan.job_id}: {'; '.join(broken)}")
    return Manifest(
        job_id=plan.job_id,
        rows_read=ids.rows_read,
        documents=documents,
        rejected=ids.rejected,
        left_out=ids.left_out,
        requests=requests,
        duplicates=documents - requests,
        shards=len(entries),
        size_bytes=sum(entry.size_bytes for entry in entries),
        shard_table_sha256=table_sha256,
        rejected_by_reason=ids.rejected_by_reason,
        carry_types=ids.carry_types,
    )


def _shard_table(entries: list[ShardEntry]) -> bytes:
    schema = make_schema(
        (name, arrow_type("string" if name in _TEXT else "int64")) for name in _COLUMNS
    )
    columns: dict[str, list[Any]] = {
        name: [getattr(entry, name) for entry in entries] for name in _COLUMNS
    }
    with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
        path = Path(scratch) / "shards.parquet"
        write_batches(path, schema, [make_batch(columns, schema)])
        return path.read_bytes()
