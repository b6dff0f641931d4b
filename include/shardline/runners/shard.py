"""Run one attempt on a shard and say what it means: what the command line and a task both call.

The records in the store are the only memory: a retry on another machine decides the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from uuid6 import uuid7

from shardline import attempts
from shardline.patience import outlast
from shardline.plan import Plan
from shardline.reasons import ExitCode
from shardline.rows import Attempt
from shardline.runners.local import LocalWorker, OnLine, run_worker
from shardline.runners.retry import Decision, Outcome, Verdict, decide, read_outcomes
from shardline.segments import SegmentName
from shardline.store import Store

# an end that the worker could not write, and after which no row was in flight
_ENDS = {
    code: code.attempt_end
    for code in (ExitCode.DRAINED, ExitCode.STORE_UNREACHABLE, ExitCode.STORE_REFUSED)
}


@dataclass(frozen=True)
class ShardOutcome:
    """What one attempt did, and what is to happen to its shard."""

    shard: str
    attempt: str
    exit_code: int
    decision: Decision
    record: Attempt | None

    @property
    def is_done(self) -> bool:
        return self.decision.verdict is Verdict.DONE


def infer_shard(
    store: Store,
    plan: Plan,
    shard: str,
    generation: int = 1,
    *,
    jitter: float = 0.0,
    on_line: OnLine = lambda _: None,
    on_start: Callable[[LocalWorker], None] = lambda _: None,
    env: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
) -> ShardOutcome:
    """Run a worker on the shard once and decide from its exit code and the records.

    Args:
        stop: set by whoever wants us to end; an outage of the store is not waited for any longer then.

    Raises:
        StoreUnavailable: the records cannot be read.
    """
    if outlast(lambda: store.exists(plan.layout.results(shard)), stop):
        done = Decision(Verdict.DONE, "results were committed before")
        return ShardOutcome(shard, "", int(ExitCode.DONE), done, None)
    attempt = str(uuid7())
    code = run_worker(
        store.uri,
        plan.job_id,
        shard,
        generation,
        attempt=attempt,
        on_line=on_line,
        on_start=on_start,
        env=env,
    )
    # an outage that the worker did not outlive must not hide how it ended
    record = outlast(lambda: _close_local(store, plan, shard, generation, attempt, code), stop)
    outcomes = outlast(lambda: read_history(store, plan, shard, generation), stop)
    if code == ExitCode.DONE:
        outcomes = [*outcomes, Outcome(code, made_progress=True)]
    return ShardOutcome(shard, attempt, code, decide(outcomes, jitter), record)


def read_history(store: Store, plan: Plan, shard: str, generation: int) -> list[Outcome]:
    """Every attempt of one generation on a shard, oldest first."""
    records = attempts.read_attempts(store, plan.layout, shard, generation)
    segments = store.list(plan.layout.segments(shard))
    return read_outcomes(records, {SegmentName.parse(found.path).attempt for found in segments})


def _close_local(
    store: Store, plan: Plan, shard: str, generation: int, attempt: str, code: int
) -> Attempt | None:
    """Close the record of a worker process; one that found the results there has no record."""
    record = attempts.read_attempt(store, plan.layout, shard, attempt)
    if record is not None:
        return record if record.exit_code is not None else close_record(store, plan, record, code)
    if code == ExitCode.DONE:
        return None
    record = attempts.new_attempt(attempt, shard, generation)
    return close_record(store, plan, record, code)


def close_record(store: Store, plan: Plan, record: Attempt, code: int | None) -> Attempt:
    """Write what was seen of an attempt's end, where the worker could not (PROTOCOL 4).

    A killed worker keeps a record without `end`: its rows were in flight.

    Args:
        code: the worker's exit code; None when nobody saw it.
    """
    if record.exit_code is None:
        record.exit_code = code
        record.end = None if code is None else _ENDS.get(code)  # type: ignore[call-overload]
    record.ended_at = record.ended_at or attempts.now()
    attempts.write_attempt(store, plan.layout, record)
    return record
