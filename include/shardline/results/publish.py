"""publish_results: make the merged files visible, in one Delta commit that replaces the partition.

Purpose: readers see a job's rows all at once, or not at all, and never two jobs' rows of one
partition together.

How it works: the files lie where they stay since merge; the commit only names them. It carries
`Transaction(job_id, n)`, so a publish that is retried or doubled commits once. When somebody else
commits first, everything is read and checked again before the next try.

What it does not do: undo. Delta's restore goes back to any version, and vacuum removes files that
no kept version names.

Known limitation: when the reply to the commit itself is lost, this raises StoreUnavailable although
the rows may be visible; the retry finds the job current and says "already".
"""

from __future__ import annotations

import logging
import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from shardline.errors import (
    CommitConflict,
    JobNotReady,
    LawBroken,
    ReplayRefused,
    Superseded,
)
from shardline.layout import NO_PARTITION, published, replay_number
from shardline.plan import timestamp
from shardline.results.delta import (
    Commit,
    NewFile,
    arrow_schema,
    commits,
    create_table,
    open_table,
    replace_partition,
    sync_log,
)
from shardline.results.merge import MergeReport, read_merge_report
from shardline.results.schema import ColumnChanged, changed_column, check_schema, extend_schema
from shardline.rows import Law

if TYPE_CHECKING:
    from shardline.plan import Plan, Replay
    from shardline.store import Store

log = logging.getLogger(__name__)

_TRIES = 30
_MAX_DELAY_S = 2.0


class Publication(msgspec.Struct, frozen=True):
    """What a commit says of the job that it published; the commit's own metadata holds it."""

    job_id: str
    table: str
    partition: str
    planned_at: str
    parent: str | None
    n: int
    """1, and more when it was forced in again after another job."""
    rows: int
    files: int
    law: Law
    dead_letters: dict[str, int]
    links: dict[str, str]
    version: int = -1
    """The version of the Delta table; known once it is read back."""
    published_at: str = ""
    is_new: bool = True
    """False when this call found the job published already."""


def publish_results(store: Store, plan: Plan, *, force: bool = False) -> Publication:
    """Publish the job's partition, or find that it is published already.

    Raises:
        JobNotReady: not merged, or not validated.
        Superseded: another job is current here that was planned later, or that replaced this one.
        ReplayRefused: a replay that was abandoned, or what it started from is no longer current;
            force does not help.
        JobFileError: a column changed its type since the job was planned.
        LawBroken: a merged file is gone or has another size.
        CommitConflict: others kept committing first.
    """
    report = read_merge_report(store, plan)
    if not store.exists(plan.layout.validation):
        raise JobNotReady(f"job {plan.job_id}: its merged files are not validated yet")
    if plan.replay is not None and store.exists(plan.layout.abandoned):
        raise ReplayRefused(f"job {plan.job_id}: this replay was abandoned")
    files = _planned_files(store, plan, report)
    own = check_schema(store, plan)
    for attempt in range(_TRIES):
        try:
            return _publish(store, plan, report, files, own, force=force)
        except CommitConflict as conflict:
            log.info("job %s: publish try %d: %s", plan.job_id, attempt + 1, conflict)
            # several publishers in step would collide again: draw lots
            time.sleep(random.uniform(0, min(_MAX_DELAY_S, 0.05 * 2**attempt)))  # noqa: S311
    raise CommitConflict(f"job {plan.job_id}: others committed first {_TRIES} times; publish again")


def current_publication(store: Store, table: str, partition: str | None) -> Publication | None:
    """What readers of this partition see now; None where nothing was published."""
    opened = open_table(store, table)
    return None if opened is None else _current(opened, partition or NO_PARTITION)


def history(store: Store, table: str) -> list[Publication]:
    """All publications that led to the table's version of now, newest first."""
    opened = open_table(store, table)
    return [] if opened is None else [_publication(commit) for commit in commits(opened)]


def check_not_superseded(plan: Plan, current: Publication | None, *, was_published: bool) -> None:
    """Refuse to put an older job over a newer one, or to bring a replaced one back by accident.

    Raises:
        Superseded: with what is current, and the ways out. ReplayRefused: the same of a replay.
    """
    where = f"job {plan.job_id}: partition {plan.partition or NO_PARTITION}"
    if plan.replay is not None:
        _check_base(plan.replay, current, where)
        return
    ways = "use rerun in the job file, or publish with --force"
    if was_published:
        by = f"superseded by {current.job_id}" if current else "rolled back"
        raise Superseded(f"{where}: it was published and then {by}; {ways}")
    if current is not None and current.planned_at > plan.planned_at:
        raise Superseded(
            f"{where}: superseded by {current.job_id}, which was planned later "
            f"({current.planned_at}); {ways}"
        )


def is_followed(plan: Plan, current: Publication | None) -> bool:
    """Whether what is current is a later replay of this job, so that its results are in it."""
    if current is None or current.parent != plan.whole_id:
        return False
    own, its = (replay_number(job, plan.whole_id) for job in (plan.job_id, current.job_id))
    return own is not None and its is not None and its > own


def _check_base(replay: Replay, current: Publication | None, where: str) -> None:
    """A replay completes what it started from: over anything else it would undo that.

    Exactly that, and not any replay before it: one that was abandoned may have come through after
    all, in the moment between its last look and its commit, and its rows are worth keeping.
    """
    if current is None or current.job_id != replay.base:
        now = f"superseded by {current.job_id}" if current else "rolled back"
        raise ReplayRefused(
            f"{where}: it replays {replay.base}, which was {now}; "
            f"`shardline replay {replay.parent} --abandon` gives it up"
        )


def _publish(
    store: Store, plan: Plan, report: MergeReport, files: list[NewFile], own: Any, *, force: bool
) -> Publication:
    """One try: every check on one version of the table, and a commit on exactly that version."""
    job, partition = plan.job_file, plan.partition or NO_PARTITION
    table = create_table(store, job.table, extend_schema(None, own))
    current = _current(table, partition)
    if current is not None and current.job_id == plan.job_id:
        sync_log(store, job.table)  # whoever committed it may have died before this
        return msgspec.structs.replace(current, is_new=False)
    n = table.transaction_version(plan.job_id) or 0
    if is_followed(plan, current) and not force:
        assert current
        sync_log(store, job.table)
        return msgspec.structs.replace(current, is_new=False)
    if not force or plan.replay is not None:
        check_not_superseded(plan, current, was_published=n > 0)
    try:
        schema = extend_schema(arrow_schema(table), own)
    except ColumnChanged as error:
        raise changed_column(job, error) from error
    record = _record(store, plan, report, n + 1)
    replace_partition(
        table,
        partition,
        files,
        schema,
        transaction=(plan.job_id, n + 1),
        record=msgspec.json.encode(record).decode(),
    )
    sync_log(store, job.table)
    log.info(
        "job %s: %d rows published to %s dt=%s", plan.job_id, record.rows, job.table, partition
    )
    table.update_incremental()
    made = (_publication(commit) for commit in commits(table))
    return next((p for p in made if (p.job_id, p.n) == (record.job_id, record.n)), record)


def _record(store: Store, plan: Plan, report: MergeReport, n: int) -> Publication:
    layout = plan.layout
    return Publication(
        job_id=plan.job_id,
        table=plan.job_file.table,
        partition=plan.partition or NO_PARTITION,
        # a job that was planned after the parent replaces its replays too
        planned_at=plan.replay.parent_planned_at if plan.replay else plan.planned_at,
        parent=plan.replay.parent if plan.replay else None,
        n=n,
        rows=report.rows,
        files=len(report.files),
        law=report.law,
        dead_letters=report.dead_letters,
        links={
            "dead_letters": store.uri_of(f"{layout.prefix}dead_letters/"),
            "rejected": store.uri_of(f"{plan.whole.prefix}rejected/"),
            "report": store.uri_of(layout.report_html),
        },
    )


def _planned_files(store: Store, plan: Plan, report: MergeReport) -> list[NewFile]:
    """The merged files as a commit adds them, each looked at in the store."""
    files = []
    for file in report.files:
        path = f"{published(plan.job_file.table)}/{file.path}"
        found = store.info(path)
        if found is None or found.size_bytes != file.size_bytes:
            size = "is gone" if found is None else f"has {found.size_bytes} bytes"
            raise LawBroken(f"{path}: {size}; merge wrote {file.size_bytes} bytes")
        modified_ms = int(found.modified.timestamp() * 1000)
        files.append(NewFile(file.path, file.size_bytes, file.rows, modified_ms))
    return files


def _current(table: Any, partition: str) -> Publication | None:
    publications = (_publication(commit) for commit in commits(table))
    return next((found for found in publications if found.partition == partition), None)


def _publication(commit: Commit) -> Publication:
    record = msgspec.json.decode(commit.record, type=Publication)
    moment = datetime.fromtimestamp(commit.timestamp_ms / 1000, UTC)
    return msgspec.structs.replace(record, version=commit.version, published_at=timestamp(moment))
