"""Write into an attempt's record how its pod ended: the memory that every later decision reads.

PROTOCOL 4: the record is the worker's; a pod whose worker wrote none gets one from who watched it. A
pod on a lost node may still run, so its record is left to its worker: without an end it reads as
vanished, which costs the shard as little.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardline.attempts import read_attempt
from shardline.plan import Plan
from shardline.reasons import PodOutcome
from shardline.rows import Attempt
from shardline.runners.shard import close_record
from shardline.store import Store


@dataclass(frozen=True)
class PodEnd:
    """What is known of a pod when nobody waits for it any longer."""

    attempt: str
    outcome: PodOutcome
    started_at: str
    pod_uid: str | None = None
    node: str | None = None
    exit_code: int | None = None
    detail: str = ""
    """What Kubernetes adds to it, in one line."""


def recorded_code(store: Store, plan: Plan, shard: str, attempt: str) -> int | None:
    """The exit code that the worker itself wrote down before its pod was gone."""
    record = read_attempt(store, plan.layout, shard, attempt)
    return None if record is None else record.exit_code


def is_closed(store: Store, plan: Plan, shard: str, attempt: str) -> bool:
    """Whether somebody has written down how this attempt's pod ended."""
    record = read_attempt(store, plan.layout, shard, attempt)
    return record is not None and record.pod_outcome is not None


def close_attempt(store: Store, plan: Plan, shard: str, generation: int, end: PodEnd) -> None:
    """Write the end down; done twice, it is the same record."""
    record = read_attempt(store, plan.layout, shard, end.attempt)
    if record is not None and end.outcome is PodOutcome.NODE_LOST:
        return
    if record is None and end.outcome is PodOutcome.DONE:
        return  # it found the results there
    known = Attempt(
        attempt=end.attempt,
        shard=shard,
        generation=generation,
        host=end.node or "",
        pid=0,
        started_at=end.started_at,
        pod_uid=end.pod_uid,
        node=end.node,
    )
    known = record or known
    known.pod_outcome = end.outcome
    if not known.message:
        known.message = end.detail
    close_record(store, plan, known, end.exit_code)
