"""Commands that only look: status, jobs, files, verify, dead letters, rejected rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from shardline.cli.find import list_jobs
from shardline.cli.summary import law_lines, root_option
from shardline.errors import JobNotReady, LawBroken, WrongInput
from shardline.layout import SLUG
from shardline.report.state import JobState, Standing, read_standing
from shardline.status.words import duration_text, rate_text

if TYPE_CHECKING:
    from shardline.cli.screen import Screen
    from shardline.plan import Plan
    from shardline.store import Store

_TABLE = re.compile(rf"{SLUG.pattern}(__sample)?")


def show_status(store: Store, plan: Plan, now: datetime, screen: Screen, *, as_json: bool) -> None:
    """The state, the status line, and each live worker."""
    standing = read_standing(store, plan, now)
    if as_json:
        shown = {"state": standing.state.value, **msgspec.to_builtins(standing.status)}
        screen.out(msgspec.json.format(msgspec.json.encode(shown)).decode())
        return
    screen.say(f"{standing.state.value}: {standing.status.line()}")
    for w in standing.status.running:
        screen.say(
            f"  {w.shard}: {w.state}, {w.rows_done:,} of {w.rows_total:,} rows,"
            f" {rate_text(w.rows_per_s)} rows/s, {rate_text(w.tokens_per_s)} tokens/s,"
            f" spoke {duration_text(w.age_s)} ago"
        )
    if hint := _next_command(plan, standing):
        screen.say(f"next: {hint}{root_option(store)}")


def _next_command(plan: Plan, standing: Standing) -> str:
    if standing.state is JobState.PUBLISHED:
        return f"shardline files {plan.job_file.table}"
    if standing.state is JobState.RUNNING:
        return ""
    if standing.state is JobState.ABANDONED:
        return f"shardline status {plan.whole_id}"
    if standing.state is JobState.SUPERSEDED and standing.publication:
        return f"shardline status {standing.publication.job_id}"
    return f"shardline resume {plan.job_id}"


def show_jobs(store: Store, now: datetime, screen: Screen, *, as_json: bool) -> None:
    """One line for each job, the newest first."""
    rows = [_job_row(store, plan, now) for plan in list_jobs(store)]
    if as_json:
        screen.out(msgspec.json.format(msgspec.json.encode(rows)).decode())
        return
    if not rows:
        screen.say(f"no jobs below {store.uri}; `shardline run JOBFILE` makes one")
        return
    widths = [max(len(str(row[key])) for row in rows) for key in _COLUMNS]
    for row in rows:
        cells = (f"{row[key]:{width}}" for key, width in zip(_COLUMNS, widths, strict=True))
        screen.say("  ".join(cells).rstrip())


_COLUMNS = ("job_id", "state", "planned", "rows")


def _job_row(store: Store, plan: Plan, now: datetime) -> dict[str, Any]:
    standing = read_standing(store, plan, now)
    s = standing.status
    rows = f"{s.rows_done:,} of {s.rows_total:,} rows" if s.prepared else ""
    planned = plan.planned_at[:16].replace("T", " ")
    return {"job_id": plan.job_id, "state": standing.state.value, "planned": planned, "rows": rows}


def table_files(store: Store, name: str, partition: str | None, version: int | None) -> list[str]:
    """The current files of a table.

    Raises:
        WrongInput: no such table, version or partition.
    """
    from shardline.results.delta import open_table, partition_files
    from shardline.results.files import published_files

    if not _TABLE.fullmatch(name):
        raise WrongInput(f"{name}: expected the name of a job or of its sample (NAME__sample)")
    found = published_files(store, name, partition, version)
    if not found and partition is not None:
        paths = [path for path, _ in partition_files(open_table(store, name, version))]
        there = sorted({path.split("/")[0].removeprefix("dt=") for path in paths})
        shown = ", ".join(there[-5:]) or "none"
        raise WrongInput(f"table {name}: no partition {partition}; there are: {shown}")
    return found


def show_verification(store: Store, plan: Plan, screen: Screen) -> None:
    """Count the law again and print its equations.

    Raises:
        LawBroken: naming each shard or file and its difference.
    """
    from shardline.results.verify import verify_job

    with screen.step(f"counting the files of job {plan.job_id}"):
        found = verify_job(store, plan)
    if plan.replay is not None:
        screen.say(f"a replay of job {plan.whole_id}, after {plan.replay.base}: counted with both")
    if not found.holds:
        raise LawBroken("; ".join(found.differences))
    for line in law_lines(found.law):
        screen.say(line)
    if found.current == plan.job_id:
        screen.say(f"{found.published_rows:,} published rows = results and their duplicates")
    elif found.current is not None:
        screen.say(f"readers see the rows of job {found.current}")
    screen.say(f"job {plan.job_id}: the law holds")


def dead_letter_lines(store: Store, plan: Plan) -> Iterator[str]:
    """The copies for people; they exist once the job is settled, those of a replay once merged."""
    for found in store.list(plan.layout.dead_letters_prefix):
        yield from store.read(found.path).decode().splitlines()


def dead_letter_hint(store: Store, plan: Plan) -> str:
    """The command that runs them again; empty where there are none, or they are not counted yet."""
    from shardline.plan import read_plan
    from shardline.results.merge import read_merge_report
    from shardline.results.outcome import say_replay
    from shardline.results.publish import current_publication, is_followed

    current = current_publication(store, plan.job_file.table, plan.partition)
    if current is not None and is_followed(plan, current):
        plan = read_plan(store, current.job_id)
    try:
        counts = read_merge_report(store, plan).dead_letters
    except JobNotReady:
        return ""
    return say_replay(plan.whole_id, counts, root_option(store)) if counts else ""


def rejected_lines(store: Store, plan: Plan) -> Iterator[str]:
    """Rejected rows by split, then those that check_ids found."""
    planned = [plan.whole.rejected(split) for split in range(len(plan.splits))]
    for path in [*planned, plan.whole.rejected_ids]:
        yield from (store.read_or_none(path) or b"").decode().splitlines()
