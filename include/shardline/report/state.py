"""How far a job has come, in one word, from which objects exist. Nobody stores this word."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from shardline.layout import NO_PARTITION
from shardline.results.publish import current_publication, is_followed
from shardline.status.read import StatusReader

if TYPE_CHECKING:
    from shardline.plan import Plan
    from shardline.results.publish import Publication
    from shardline.status.fold import JobStatus
    from shardline.store import Store


class JobState(StrEnum):
    """From the first stage to the last; `superseded`: another job's data is in its place.

    `abandoned`: a replay that was given up.
    """

    PREPARING = "preparing"
    WAITING = "waiting"
    RUNNING = "running"
    STOPPED = "stopped"
    INFERRED = "inferred"
    MERGED = "merged"
    PUBLISHED = "published"
    SUPERSEDED = "superseded"
    ABANDONED = "abandoned"


class Standing(NamedTuple):
    """A job's state and what it was read from."""

    state: JobState
    status: JobStatus
    publication: Publication | None
    """The one that is current in the job's partition, whoever published it."""

    @property
    def headline(self) -> str:
        """One sentence for people."""
        s = self.status
        shards = f"{s.shards_done:,} of {s.shards_total:,} shards done"
        rows = f"{s.rows_done:,} of {s.rows_total:,} rows"
        return {
            JobState.PREPARING: "The corpus is being read and cut; no model has run yet.",
            JobState.WAITING: f"{s.shards_total:,} shards are ready; none has run yet.",
            JobState.RUNNING: f"Running: {shards}, {rows}.",
            JobState.STOPPED: f"Nothing runs now: {shards}, {rows}.",
            JobState.INFERRED: "All shards are done; the results are not merged yet.",
            JobState.MERGED: "Merged, and not published.",
            JobState.PUBLISHED: "Published.",
            JobState.SUPERSEDED: "Published, and replaced since.",
            JobState.ABANDONED: "A replay that was given up.",
        }[self.state]


def read_standing(store: Store, plan: Plan, now: datetime) -> Standing:
    """The state of a job."""
    return stand(store, plan, StatusReader(store, plan).read(now))


def stand(store: Store, plan: Plan, status: JobStatus) -> Standing:
    """The state of a job whose status was read."""
    partition = plan.partition or NO_PARTITION
    current = current_publication(store, plan.job_file.table, partition)
    is_merged = status.is_done and store.exists(plan.layout.merge_report)
    state = fold_state(
        status,
        is_merged=is_merged,
        is_current=current is not None and current.job_id == plan.job_id,
        is_replaced=is_merged and _is_replaced(plan, current),
    )
    if plan.replay and state is not JobState.PUBLISHED and store.exists(plan.layout.abandoned):
        state = JobState.ABANDONED
    return Standing(state, status, current)


def _is_replaced(plan: Plan, current: Publication | None) -> bool:
    planned_at = plan.replay.parent_planned_at if plan.replay else plan.planned_at
    return current is not None and (current.planned_at > planned_at or is_followed(plan, current))


def fold_state(
    status: JobStatus, *, is_merged: bool, is_current: bool, is_replaced: bool
) -> JobState:
    """The furthest state that what exists allows."""
    if is_current:
        return JobState.PUBLISHED
    if is_merged:
        return JobState.SUPERSEDED if is_replaced else JobState.MERGED
    if not status.prepared:
        return JobState.PREPARING
    if status.is_done:
        return JobState.INFERRED
    if status.running:
        return JobState.RUNNING
    has_begun = status.rows_done or status.shards["failed"] or status.shards["dead"]
    return JobState.STOPPED if has_begun else JobState.WAITING
