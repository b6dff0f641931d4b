"""settle_shards: give every shard its results, or say plainly why not.

A shard that had an attempt and has no results is dead: what its segments hold is kept, the rest
become error lines `shard_dead`, and the put of `results` seals it (PROTOCOL 15). First everything is
counted, then the limits are checked, and only then anything is written: over a limit nothing
changes, so that resuming or clearing works.

The settlement is counted from `results` as they are in the store, not from what this run meant to
write: a worker that came first has won, and its lines count.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shardline.errors import Cancelled, JobNotReady, LimitExceeded
from shardline.reasons import DeadLetterReason
from shardline.results.dead_letters import write_dead_letters
from shardline.results.law import count_ledger
from shardline.rows import Attempt, ErrorBody, Result, ShardEntry
from shardline.segments import (
    SegmentName,
    Segments,
    commit_results,
    done_shards,
    read_lines,
    request_ids,
    resolve,
)
from shardline.shards.manifest import read_manifest, read_shards

if TYPE_CHECKING:
    from shardline.plan import Plan
    from shardline.store import Store

log = logging.getLogger(__name__)

_SHOWN = 3
_SEALED = (DeadLetterReason.SHARD_DEAD, DeadLetterReason.NOT_RUN)
# lines of results are read as those of one segment; the name has no meaning there
_RESULTS = SegmentName("results", 0)


class Settlement(msgspec.Struct, frozen=True):
    """`settlement.json`: how the running of the job ended."""

    job_id: str
    generation: int
    rows_read: int
    shards: int
    dead_shards: list[str]
    """Sealed after they had used their attempts up."""
    not_run_shards: list[str]
    """Sealed without an attempt: the job stopped before them."""
    dead_letters: dict[str, int]
    """Requests without a result, by reason."""
    dead_documents: int
    """Documents without a result that count in max_dead: dead letters and their duplicates."""
    not_run_documents: int

    @property
    def dead_share(self) -> float:
        """What `limits.max_dead` limits (PROTOCOL 16)."""
        return self.dead_documents / self.rows_read if self.rows_read else 0.0


class _Dead(msgspec.Struct, frozen=True):
    """The requests of one shard without a result, and their documents, by reason."""

    requests: dict[str, int]
    documents: dict[str, int]


def settle_shards(store: Store, plan: Plan, *, generation: int) -> Settlement:
    """Seal what ended without results, write the dead letters for people, and sum up.

    Call it when no wave is unfinished. A settled job stays settled: this returns what was found.

    Raises:
        JobNotReady: shards never had an attempt, and the job file does not allow a partial job.
        LimitExceeded: more dead letters than `limits.max_dead`. Nothing was changed.
        Cancelled: the generation was cancelled before every shard had results.
    """
    if (done := store.read_or_none(plan.layout.settlement)) is not None:
        return msgspec.json.decode(done, type=Settlement)
    entries = read_shards(store, plan)
    unfinished = _unfinished(store, plan, entries)
    # when every shard is done a cancel came too late: a resume runs nothing and opens no generation
    if unfinished and store.exists(plan.layout.cancel(generation)):
        raise Cancelled(f"job {plan.job_id}: cancelled; `shardline resume {plan.job_id}` goes on")
    never_run = [e for e in unfinished if unfinished[e] is None]
    if never_run and not plan.job_file.limits.partial:
        raise JobNotReady(_say_not_run(plan, [never.shard for never in never_run], len(entries)))
    dead = {e.shard: _count_dead(store, plan, e.shard) for e in entries if e not in unfinished}
    for entry, attempt in unfinished.items():
        dead[entry.shard] = _count_dead_if_sealed(store, plan, entry.shard, _seal_reason(attempt))
    _check_limit(plan, _sum_up(store, plan, dead, generation))
    for entry, attempt in unfinished.items():
        _seal(store, plan, entry, attempt)
        dead[entry.shard] = _count_dead(store, plan, entry.shard)
    for shard in dead:
        # of a replay, merge writes them: with those that it did not run
        if dead[shard].requests and plan.replay is None:
            write_dead_letters(store, plan, shard)
    settlement = _sum_up(store, plan, dead, generation)
    store.put_once(plan.layout.settlement, msgspec.json.encode(settlement))
    return read_settlement(store, plan)


def read_settlement(store: Store, plan: Plan) -> Settlement:
    """The settlement. Raises JobNotReady before the job is settled."""
    found = store.read_or_none(plan.layout.settlement)
    if found is None:
        raise JobNotReady(f"job {plan.job_id}: it is not settled yet")
    return msgspec.json.decode(found, type=Settlement)


def _unfinished(
    store: Store, plan: Plan, entries: Iterable[ShardEntry]
) -> dict[ShardEntry, str | None]:
    """Shards without results, each with the id of its last attempt, or None without any."""
    done = done_shards(store, plan.layout)
    return {
        entry: _last_attempt(store, plan, entry.shard)
        for entry in entries
        if entry.shard not in done
    }


def _last_attempt(store: Store, plan: Plan, shard: str) -> str | None:
    """Attempt ids are UUIDv7, so the largest began last."""
    found = [attempt.path for attempt in store.list(plan.layout.attempts(shard))]
    return found[-1].rsplit("/", 1)[-1].removesuffix(".json") if found else None


def _sum_up(store: Store, plan: Plan, dead: dict[str, _Dead], generation: int) -> Settlement:
    requests = _add(shard.requests for shard in dead.values())
    documents = _add(shard.documents for shard in dead.values())
    not_run = documents.pop(DeadLetterReason.NOT_RUN, 0)
    return Settlement(
        job_id=plan.job_id,
        generation=generation,
        rows_read=read_manifest(store, plan).rows_read,
        shards=len(dead),
        dead_shards=_sealed_as(DeadLetterReason.SHARD_DEAD, dead),
        not_run_shards=_sealed_as(DeadLetterReason.NOT_RUN, dead),
        dead_letters=requests,
        dead_documents=sum(documents.values()),
        not_run_documents=not_run,
    )


def _sealed_as(reason: DeadLetterReason, dead: dict[str, _Dead]) -> list[str]:
    """Only a seal writes these reasons, so the lines themselves say which shards were sealed."""
    return sorted(shard for shard, found in dead.items() if reason in found.requests)


def _count_dead(store: Store, plan: Plan, shard: str) -> _Dead:
    """From the results of the shard as they are."""
    with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
        path = store.fetch(plan.layout.results(shard), Path(scratch))
        with path.open("rb") as file:
            lines = resolve(read_lines(_RESULTS, file))
        reasons = {name: line.reason for name, line in lines.items() if line.reason is not None}
        return _with_duplicates(store, plan, shard, reasons, Path(scratch))


def _count_dead_if_sealed(store: Store, plan: Plan, shard: str, seal: DeadLetterReason) -> _Dead:
    """From the segments of a shard without results: what they lack would be sealed."""
    with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
        segments = Segments(store, plan.layout, shard, Path(scratch))
        segments.refresh()
        reasons: dict[str, str] = {}
        for name in request_ids(store.fetch(plan.layout.shard(shard), Path(scratch))):
            line = segments.lines.get(name)
            reason = seal.value if line is None else line.reason
            if reason is not None:
                reasons[name] = reason
        return _with_duplicates(store, plan, shard, reasons, Path(scratch))


def _with_duplicates(
    store: Store, plan: Plan, shard: str, reasons: dict[str, str], scratch: Path
) -> _Dead:
    """Add the documents that hang on them; the ledger is read only where something is dead."""
    if not reasons:
        return _Dead({}, {})
    asked = count_ledger(store.fetch(plan.layout.ledger(shard), scratch)).asked
    documents: dict[str, int] = {}
    for name, reason in reasons.items():
        documents[reason] = documents.get(reason, 0) + asked.get(name, 1)
    return _Dead(_add({reason: 1} for reason in reasons.values()), documents)


def _add(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for count in counts:
        for reason, n in count.items():
            total[reason] = total.get(reason, 0) + n
    return dict(sorted(total.items()))


def _seal_reason(attempt: str | None) -> DeadLetterReason:
    return DeadLetterReason.NOT_RUN if attempt is None else DeadLetterReason.SHARD_DEAD


def _seal(store: Store, plan: Plan, entry: ShardEntry, attempt: str | None) -> None:
    """Put results with an error line for each request that no segment holds.

    A put that is lost leaves the shard done all the same, by a worker that was late.
    """
    reason = _seal_reason(attempt)
    cause = reason.sentence if attempt is None else _cause(store, plan, entry.shard, attempt)

    def missing(custom_id: str) -> bytes:
        error = ErrorBody(code=reason.value, message=cause)
        return msgspec.json.encode(Result(id=f"seal-{custom_id}", custom_id=custom_id, error=error))

    put = commit_results(store, plan.layout, entry.shard, missing)
    log.info("shard %s: sealed as %s (%s): %s", entry.shard, reason.value, put.value, cause)


def _cause(store: Store, plan: Plan, shard: str, attempt: str) -> str:
    """One sentence on how the last attempt ended, and where."""
    record = msgspec.json.decode(store.read(plan.layout.attempt(shard, attempt)), type=Attempt)
    end = record.pod_outcome or record.end
    how = "was interrupted" if end is None else f"ended {end.value}"
    said = record.message or ("" if end is None else end.sentence)
    places = {"pod": record.pod_uid, "node": record.node}
    where = ", ".join(f"{what} {name}" for what, name in places.items() if name)
    return f"attempt {attempt} {how}" + (said and f": {said}") + (where and f" ({where})")


def _check_limit(plan: Plan, settlement: Settlement) -> None:
    limit = plan.job_file.limits.max_dead
    if settlement.dead_share <= limit:
        return
    counts = ", ".join(f"{n} {reason}" for reason, n in settlement.dead_letters.items())
    raise LimitExceeded(
        f"job {plan.job_id}: {settlement.dead_documents} of {settlement.rows_read} rows read have no "
        f"result ({settlement.dead_share:.2%}, limits.max_dead allows {limit:.2%}); "
        f"requests by reason: {counts}. Nothing was changed: mend the cause, then "
        f"`shardline resume {plan.job_id}`"
    )


def _say_not_run(plan: Plan, shards: list[str], total: int) -> str:
    shown = ", ".join(shards[:_SHOWN]) + (", …" if len(shards) > _SHOWN else "")
    return (
        f"job {plan.job_id}: {len(shards)} of {total} shards never had an attempt ({shown}); "
        f"`shardline resume {plan.job_id}` runs them, limits.partial: true publishes without them"
    )
