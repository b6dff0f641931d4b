"""check_outcome: the job's last word. Green means published, current, and the law held.

Its line is written for 3 a.m.: what happened, the counts by reason, the next command, and the
heading to read in the runbook.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from shardline.errors import JobNotReady, LawBroken
from shardline.layout import NO_PARTITION
from shardline.reasons import can_replay
from shardline.results.delta import open_table, partition_files
from shardline.results.merge import read_merge_report
from shardline.results.publish import (
    Publication,
    check_not_superseded,
    current_publication,
    is_followed,
)
from shardline.shards.manifest import read_manifest

if TYPE_CHECKING:
    from shardline.plan import Plan
    from shardline.store import Store


class Outcome(msgspec.Struct, frozen=True):
    """A job that succeeded."""

    job_id: str
    publication: Publication
    rejected: dict[str, int]
    line: str
    """For the log of the last task, and for whoever is on call."""


def check_outcome(store: Store, plan: Plan) -> Outcome:
    """Say that the job is published and the law held, or raise what is wrong.

    Raises:
        JobNotReady: it was not published.
        Superseded: it was, and is not what readers see.
        LawBroken: the figures of its commit, or the rows in the table, do not add up.
    """
    report = read_merge_report(store, plan)
    table, partition = plan.job_file.table, plan.partition or NO_PARTITION
    current = current_publication(store, table, partition)
    opened = open_table(store, table)
    is_current = current is not None and current.job_id == plan.job_id
    if current is None or not (is_current or is_followed(plan, current)):
        was = opened is not None and opened.transaction_version(plan.job_id) is not None
        check_not_superseded(plan, current, was_published=was)
        raise JobNotReady(
            f"job {plan.job_id}: merged, but not published; next: shardline resume {plan.job_id}; "
            "runbook: A job that did not publish"
        )
    broken = current.law.differences()
    rows = sum(n for _, n in partition_files(opened, partition))
    merged = report.rows if is_current else current.rows
    if rows != merged:
        broken.append(f"{rows} rows in the table, {merged} merged")
    if broken:
        raise LawBroken(
            f"job {plan.job_id}: {'; '.join(broken)}; next: shardline verify {plan.job_id}; "
            "runbook: The law is broken"
        )
    rejected = read_manifest(store, plan).rejected_by_reason
    since = "" if is_current else f"job {plan.job_id}: replayed since; "
    return Outcome(plan.job_id, current, rejected, since + say_outcome(current, rejected))


def say_outcome(publication: Publication, rejected: dict[str, int]) -> str:
    """The one line."""
    law = publication.law
    said = [
        f"job {publication.job_id}: published {publication.rows:,} rows to {publication.table} "
        f"dt={publication.partition} (version {publication.version})",
        f"{law.rows_read:,} rows read = {law.documents:,} documents + {law.rejected:,} rejected"
        f"{_by_reason(rejected)} + {law.left_out:,} left out",
        f"{law.documents:,} documents = {law.results:,} results + {law.duplicates:,} duplicates + "
        f"{law.dead_letters:,} dead letters{_by_reason(publication.dead_letters)}",
    ]
    if law.dead_letters:
        where = publication.links["dead_letters"]
        command = say_replay(publication.parent or publication.job_id, publication.dead_letters)
        said.append(f"next: read {where}, then {command}; runbook: Dead letters")
    elif law.rejected:
        said.append(f"next: read {publication.links['rejected']}; runbook: Rejected rows")
    else:
        said.append("nothing to do")
    return "; ".join(said)


def say_replay(parent: str, dead_letters: Mapping[str, int], more: str = "") -> str:
    """The command that runs a job's dead letters again, with its exact arguments.

    Those that would only fail again need another setting, and which one only the user knows.
    """
    there = sorted(reason for reason, n in dead_letters.items() if n)
    hopeful = [reason for reason in there if can_replay(reason)]
    options = "".join(f" --reason {reason}" for reason in hopeful or there)
    return f"`shardline replay {parent}{options}{'' if hopeful else ' --set FIELD=VALUE'}{more}`"


def _by_reason(counts: dict[str, int]) -> str:
    shown = ", ".join(f"{n:,} {reason}" for reason, n in counts.items() if n)
    return f" ({shown})" if shown else ""
