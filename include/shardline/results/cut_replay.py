"""cut_replay: harvest what late workers left, and cut the rest of the chosen dead letters into shards.

A replay's shards are like any job's: a file of requests, a ledger of their documents, a sidecar. The
requests keep the custom_ids of the parent, whatever settings have changed, so that what they end as
takes the place of the parent's lines (PROTOCOL 19).

What is harvested is put before anything is cut: a late worker that commits meanwhile changes nothing,
and a second run cuts the same bytes.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import orjson

from shardline.corpus.requests import canonical, request_line
from shardline.errors import LawBroken, ObjectNotFound, ReplayRefused
from shardline.layout import shard_id
from shardline.plan import read_plan
from shardline.results.chain import Chain, ReplayCut, dead_names, read_harvest
from shardline.results.lines import without_output
from shardline.results.merge import read_merge_report
from shardline.rows import ShardEntry
from shardline.segments import request_ids
from shardline.shards.ledger import ledger_schema
from shardline.shards.manifest import read_manifest, write_replay_manifest
from shardline.shards.parquet import ROW_GROUP, read_batches, write_batches

if TYPE_CHECKING:
    from shardline.job import JobFile
    from shardline.plan import Plan, Replay
    from shardline.store import Store

log = logging.getLogger(__name__)

_SHARDS_PER_BUCKET = 1_000  # what the name of a shard has room for


class ReplayedRequest(NamedTuple):
    """A request as the replay asks it. `length` is that of its body, as for any shard."""

    custom_id: str
    line: bytes
    length: int


def cut_replay(store: Store, plan: Plan) -> ReplayCut:
    """Harvest, cut and put the manifest of a replay; nothing of it is done twice.

    Raises:
        ReplayRefused: a shard or ledger of the parent is gone.
        LawBroken: a shard file of the parent was changed.
        ObjectConflict: an earlier run wrote other bytes.
    """
    assert plan.replay
    if (found := store.read_or_none(plan.layout.replay_cut)) is None:
        try:
            cut = _cut(store, plan, plan.replay)
        except ObjectNotFound as error:
            raise ReplayRefused(say_gone(plan.whole_id, error.path)) from error
        store.put_same(plan.layout.replay_cut, msgspec.json.encode(cut))
    else:
        cut = msgspec.json.decode(found, type=ReplayCut)
    write_replay_manifest(store, plan, cut.shards)
    return cut


def say_gone(parent: str, path: str) -> str:
    """Why a replay that comes too late is refused."""
    return (
        f"job {parent}: {path} is gone, and a replay needs it; shards and ledgers may be cleaned up "
        "after SHARDLINE_KEEP_DAYS: raise `rerun` in the job file to run the job again"
    )


def replayed_request(parent: JobFile, job: JobFile, line: bytes) -> ReplayedRequest:
    """The parent's line with the parameters of the replay."""
    request = orjson.loads(line)
    name, body = request["custom_id"], request["body"]
    del body["model"]
    if job.parameters != parent.parameters:
        kept = {key: body[key] for key in body if key not in parent.parameters}
        body = kept | job.parameters
        line = request_line(job, canonical(body), name)
    return ReplayedRequest(name, line, len(canonical(body)))


def _cut(store: Store, plan: Plan, replay: Replay) -> ReplayCut:
    base, parent = read_plan(store, replay.base), read_plan(store, replay.parent)
    chain, writer = Chain(store, base), _Writer(store, plan)
    dead = harvested = run = 0
    for number, merged in enumerate(read_merge_report(store, base).shards):
        if not merged.dead_letters:
            continue
        ended = chain.read(number).results.ended
        names = dead_names(ended)
        found = _harvest(store, plan, chain, number, names)
        wanted = {n for n in names if n not in found and ended[n].reason in replay.reasons}
        dead, harvested, run = dead + len(names), harvested + len(found), run + len(wanted)
        if wanted:
            entry = chain.shards[number]
            writer.add(number, *_pick(store, plan, parent.job_file, entry, wanted))
    writer.close()
    log.info(
        "job %s: %d of %d dead letters harvested, %d to run in %d shards",
        plan.job_id,
        harvested,
        dead,
        run,
        len(writer.entries),
    )
    return ReplayCut(writer.entries, writer.ranges, dead, harvested, dead - harvested - run)


def _harvest(store: Store, plan: Plan, chain: Chain, number: int, names: list[str]) -> set[str]:
    """Put what segments hold of these dead requests, the first time; the requests it is for."""
    shard = chain.shards[number].shard
    if not store.exists(plan.layout.harvest(shard)):
        lines = chain.late_lines(number, names)
        found = b"".join(lines[name] for name in names if name in lines)
        store.put_once(plan.layout.harvest(shard), found)
    return set(read_harvest(store, plan.layout, shard, without_output))


def _pick(
    store: Store, plan: Plan, parent: JobFile, entry: ShardEntry, wanted: set[str]
) -> tuple[list[ReplayedRequest], Any]:
    """The wanted requests of a shard of the parent, and the ledger rows of their documents."""
    import pyarrow as pa
    import pyarrow.compute as pc

    job = plan.job_file
    with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
        path = store.fetch(plan.whole.shard(entry.shard), Path(scratch))
        with path.open("rb") as lines:
            if hashlib.file_digest(lines, "sha256").hexdigest() != entry.sha256:
                raise LawBroken(f"{plan.whole.shard(entry.shard)}: has not the manifest's sha256")
            lines.seek(0)
            requests = [
                replayed_request(parent, job, line)
                for name, line in zip(request_ids(path), lines, strict=True)
                if name in wanted
            ]
        names = pa.array(sorted(wanted), pa.string())
        ledger = store.fetch(plan.whole.ledger(entry.shard), Path(scratch))
        batches = [
            batch.filter(pc.is_in(batch.column("fingerprint"), value_set=names))
            for batch in read_batches(ledger)
        ]
    return requests, pa.Table.from_batches(batches)


class _Writer:
    """Fills shard after shard up to the limits, in the order in which requests come."""

    def __init__(self, store: Store, plan: Plan) -> None:
        self._store, self._plan = store, plan
        self._limits = plan.job_file.shards
        self._schema = ledger_schema(read_manifest(store, plan, plan.whole).carry_types)
        self.entries: list[ShardEntry] = []
        self.ranges: list[tuple[int, int]] = []
        self._start()

    def _start(self) -> None:
        self._requests: list[ReplayedRequest] = []
        self._ledgers: list[Any] = []
        self._numbers: list[int] = []
        self._size = 0

    def add(self, number: int, requests: list[ReplayedRequest], ledger: Any) -> None:
        """Add the requests of one shard of the parent, with the rows of their documents."""
        for part in self._parts(requests):
            self._requests += part
            self._size += sum(len(request.line) for request in part)
            self._ledgers.append(_rows_of(ledger, part))
            self._numbers.append(number)

    def _parts(self, requests: list[ReplayedRequest]) -> Iterator[list[ReplayedRequest]]:
        """The requests in pieces that fit; what is full is written before the next piece comes."""
        part: list[ReplayedRequest] = []
        size = 0
        for request in requests:
            is_full = len(self._requests) + len(part) >= self._limits.max_requests
            if is_full or (
                (self._requests or part)
                and self._size + size + len(request.line) > self._limits.max_bytes
            ):
                if part:
                    yield part
                self.close()
                part, size = [], 0
            part.append(request)
            size += len(request.line)
        yield part

    def close(self) -> None:
        """Write what is there, if anything is."""
        if not self._requests:
            return
        n = len(self.entries)
        shard = shard_id(n // _SHARDS_PER_BUCKET, n % _SHARDS_PER_BUCKET)
        content = b"".join(request.line for request in self._requests)
        lengths = [request.length for request in self._requests]
        layout = self._plan.layout
        self._store.put_same(layout.shard(shard), content)
        documents = self._write_ledger(layout.ledger(shard))
        entry = ShardEntry(
            shard=shard,
            requests=len(self._requests),
            documents=documents,
            size_bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            min_length=min(lengths),
            max_length=max(lengths),
        )
        self._store.put_same(layout.sidecar(shard), msgspec.json.encode(entry))
        self.entries.append(entry)
        self.ranges.append((self._numbers[0], self._numbers[-1]))
        self._start()

    def _write_ledger(self, path: str) -> int:
        import pyarrow as pa

        lines = {request.custom_id: n for n, request in enumerate(self._requests)}
        table = pa.concat_tables(self._ledgers)
        numbers = [lines[str(name)] for name in table.column("fingerprint").to_pylist()]
        at = table.schema.get_field_index("line")
        table = table.set_column(at, "line", pa.array(numbers, pa.int32()))
        table = table.cast(self._schema).combine_chunks()
        with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
            target = Path(scratch) / "ledger.parquet"
            written = write_batches(target, self._schema, table.to_batches(ROW_GROUP))
            self._store.put_same(path, target)
        return written


def _rows_of(ledger: Any, requests: list[ReplayedRequest]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    names = pa.array([request.custom_id for request in requests], pa.string())
    return ledger.filter(pc.is_in(ledger.column("fingerprint"), value_set=names))
