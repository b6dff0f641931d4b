"""verify_job: count the law again, from the files alone, at any time after the fact.

Nothing that a stage reported is believed but the manifest and how many rows the scans read: rejected
lines, shard files, ledgers, results and the published rows of the table's version of now are counted.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shardline.errors import LawBroken, ObjectNotFound
from shardline.layout import NO_PARTITION, published, published_file
from shardline.results.chain import Chain, Replayed, read_cut
from shardline.results.delta import open_table, partition_files
from shardline.results.law import (
    LedgerCount,
    count_ledger,
    count_rejected,
    job_law,
    shard_differences,
    shard_law,
)
from shardline.results.lines import Ended, read_results, without_output
from shardline.results.publish import Publication, current_publication
from shardline.rows import Law, ShardEntry
from shardline.shards.parquet import parquet_errors, read_batches

if TYPE_CHECKING:
    from shardline.layout import JobLayout
    from shardline.plan import Plan
    from shardline.store import Store

_PIECE = 1 << 24


class Verification(msgspec.Struct, frozen=True):
    """What was counted, and each difference with its shard or file."""

    job_id: str
    law: Law
    published_rows: int
    """Rows of the job in the table's version of now; 0 when the job is not current."""
    current: str | None
    """The job whose rows readers see in this partition."""
    differences: list[str]

    @property
    def holds(self) -> bool:
        return not self.differences


class _Counted(msgspec.Struct):
    law: Law
    rows: int
    differences: list[str]
    replayed: Replayed = Replayed()


_NOTHING = Law(0, 0, 0, 0, 0, 0, 0)


def verify_job(store: Store, plan: Plan) -> Verification:
    """Count everything again.

    Raises:
        JobNotReady: the shards are not cut yet.
        LawBroken: the list of shards itself is not the manifest's.
    """
    current = current_publication(store, plan.job_file.table, plan.partition)
    is_current = current is not None and current.job_id == plan.job_id
    chain = Chain(store, plan)
    counted = [
        _verify_shard(store, plan, chain, number, is_current) for number in range(len(chain.shards))
    ]
    rejected = count_rejected(store, plan)
    law = job_law(store, plan, [shard.law for shard in counted], rejected.rows)
    rows = sum(shard.rows for shard in counted) if is_current else 0
    differences = [difference for shard in counted for difference in shard.differences]
    differences += _replay_differences(store, plan, counted, chain)
    differences += rejected.differences
    differences += [f"job {plan.job_id}: {broken}" for broken in law.differences()]
    if current is not None and is_current:
        differences += _compare_table(store, plan, current, rows, len(counted))
    return Verification(
        job_id=plan.job_id,
        law=law,
        published_rows=rows,
        current=None if current is None else current.job_id,
        differences=differences,
    )


def _verify_shard(
    store: Store, plan: Plan, chain: Chain, number: int, is_current: bool
) -> _Counted:
    with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
        try:
            return _count_shard(store, plan, chain, number, is_current, Path(scratch))
        except _unreadable() as error:
            return _Counted(_NOTHING, 0, [f"shard {chain.shards[number].shard}: {error}"])


def _replay_differences(
    store: Store, plan: Plan, counted: list[_Counted], chain: Chain
) -> list[str]:
    """The shards that replays ran themselves, and what became of the dead letters of the last."""
    differences = []
    for link in chain.links[1:]:
        for entry in link.shards:
            with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
                try:
                    found = _own_differences(store, link.plan, entry, Path(scratch))
                except _unreadable() as error:
                    found = [f"shard {entry.shard}: {error}"]
            differences += [f"replay {link.plan.job_id}: {difference}" for difference in found]
    if plan.replay is not None:
        replayed = sum((shard.replayed for shard in counted), Replayed())
        found = replayed.differences(read_cut(store, plan))
        differences += [f"replay {plan.job_id}: {difference}" for difference in found]
    return differences


def _own_differences(store: Store, plan: Plan, entry: ShardEntry, scratch: Path) -> list[str]:
    """What breaks the law in a shard of the job's own, by its file, ledger and results."""
    ledger = count_ledger(store.fetch(plan.layout.ledger(entry.shard), scratch))
    path = store.fetch(plan.layout.results(entry.shard), scratch)
    differences = shard_differences(entry, ledger, read_results(path, without_output))
    return differences + _changed_file(store, plan.layout, entry, scratch)


def _changed_file(store: Store, layout: JobLayout, entry: ShardEntry, scratch: Path) -> list[str]:
    if _sha256(store.fetch(layout.shard(entry.shard), scratch)) == entry.sha256:
        return []
    return [f"shard {entry.shard}: its file has not the sha256 of the manifest"]


def _unreadable() -> tuple[type[Exception], ...]:
    return (ObjectNotFound, LawBroken, *parquet_errors())


def _count_shard(
    store: Store, plan: Plan, chain: Chain, number: int, is_current: bool, scratch: Path
) -> _Counted:
    entry = chain.shards[number]
    ledger = count_ledger(store.fetch(plan.whole.ledger(entry.shard), scratch))
    results, replayed = chain.read(number)
    differences = shard_differences(entry, ledger, results)
    differences += _changed_file(store, plan.whole, entry, scratch)
    rows = 0
    if is_current:
        expected = _alive(ledger, results.ended)
        found = _published(store, plan, number, scratch) if expected else Counter()
        rows = found.total()
        differences += _compare_rows(entry.shard, expected, found)
    return _Counted(shard_law(ledger, results.ended.values()), rows, differences, replayed)


def _alive(ledger: LedgerCount, ended: dict[str, Ended]) -> Counter[str]:
    """Requests with a result, and the documents that each publishes."""
    alive = {name for name, end in ended.items() if end.reason is None}
    return Counter({name: n for name, n in ledger.asked.items() if name in alive})


def _published(store: Store, plan: Plan, number: int, scratch: Path) -> Counter[str]:
    name = published_file(plan.job_id, plan.partition, number)
    path = store.fetch(f"{published(plan.job_file.table)}/{name}", scratch)
    found: Counter[str] = Counter()
    for batch in read_batches(path, ["fingerprint"]):
        found.update(batch.column("fingerprint").to_pylist())
    return found


def _compare_rows(shard: str, expected: Counter[str], found: Counter[str]) -> list[str]:
    lost, extra = expected - found, found - expected
    differences = []
    if lost:
        differences.append(f"shard {shard}: {lost.total()} rows not published, first {min(lost)}")
    if extra:
        differences.append(f"shard {shard}: {extra.total()} rows too many, first {min(extra)}")
    return differences


def _compare_table(
    store: Store, plan: Plan, current: Publication, rows: int, shards: int
) -> list[str]:
    """The current files must be this job's planned ones and no others."""
    partition = plan.partition or NO_PARTITION
    opened = open_table(store, plan.job_file.table)
    listed = partition_files(opened, partition)
    planned = {published_file(plan.job_id, plan.partition, number) for number in range(shards)}
    where = f"table {plan.job_file.table} dt={partition}"
    differences = [
        f"{where}: {path} is no file of job {plan.job_id}"
        for path, _ in listed
        if path not in planned
    ]
    in_table = sum(n for _, n in listed)
    if in_table != rows:
        differences.append(f"{where}: the table counts {in_table} rows, the files hold {rows}")
    if current.rows != rows:
        differences.append(f"{where}: {current.rows} rows were published, the files hold {rows}")
    return differences


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
