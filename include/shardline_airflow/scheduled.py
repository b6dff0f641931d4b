"""A dag for each job file with a schedule, made so that a broken file breaks no other.

A dag file that raises takes all its dags with it. So a job file that is wrong becomes a dag of the
same name that has no schedule, says in its description what is wrong, and fails with that line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time
from pathlib import Path

import yaml
from airflow.sdk import DAG, Asset, CronPartitionTimetable, task

from shardline.errors import FieldProblem, JobFileError
from shardline.job import JobFile
from shardline.job_blocks import Schedule
from shardline.job_reader import load_job
from shardline.layout import SLUG, published
from shardline.store import folder_of
from shardline_airflow.form import run_fields
from shardline_airflow.job_tasks import RETRIES, JobSpec, job_tasks

START = datetime(2026, 1, 1, tzinfo=UTC)
WAITING_RUNS = 4
"""A date whose input is late must not hold up the next ones, and one that is repaired by hand."""


@dataclass(frozen=True)
class Scheduled:
    """A job file that has a schedule, or is broken: then `error` says how."""

    dag_id: str
    file: str
    job: JobFile | None
    error: str = ""


def scheduled_jobs(folder: Path) -> Iterator[Scheduled]:
    """The job files that get a dag, by file name."""
    taken: dict[str, str] = {}
    for path in sorted(folder.glob("*.yaml")):
        found = _read(path)
        if found is None:
            continue
        if found.dag_id in taken:
            problem = FieldProblem(
                "name", f"{found.dag_id} is also the name of {taken[found.dag_id]}"
            )
            error = JobFileError(path.name, [problem])
            found = Scheduled(f"{found.dag_id}--{path.stem}", path.name, None, str(error))
        taken[found.dag_id] = path.name
        yield found


def make_dag(found: Scheduled, root: str, doc: str) -> DAG:
    """The dag of one job file; `doc` is what all of them say."""
    if found.job is None or found.job.schedule is None:
        return _broken_dag(found)
    return _job_dag(found, found.job, found.job.schedule, root, doc)


def asset_of(job: JobFile, root: str) -> Asset:
    """The asset that a job's table is; its consumers are woken by each partition."""
    folder = folder_of(root)
    uri = (folder.as_uri() if folder else root).rstrip("/")
    return Asset(name=job.table, uri=f"{uri}/{published(job.table)}")


def _read(path: Path) -> Scheduled | None:
    try:
        job = load_job(path)
    except JobFileError as error:
        return Scheduled(_name_in(path), path.name, None, str(error))
    return Scheduled(job.name, path.name, job) if job.schedule else None


def _name_in(path: Path) -> str:
    """The name that a broken job file gives itself, so that its dag keeps its history."""
    try:
        name = yaml.safe_load(path.read_text(encoding="utf-8"))["name"]
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError):
        name = None
    if isinstance(name, str) and SLUG.fullmatch(name):
        return name
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in path.stem)


def _job_dag(found: Scheduled, job: JobFile, schedule: Schedule, root: str, doc: str) -> DAG:
    with DAG(
        found.dag_id,
        # At midnight: a run that is triggered with a partition key gets this very date, and a
        # backfill knows partitions by their date, not by their key.
        schedule=CronPartitionTimetable(
            schedule.cron, timezone="UTC", run_offset=-1, key_format="%Y-%m-%d"
        ),
        start_date=datetime.combine(schedule.start_date, time(), UTC),
        catchup=False,
        max_active_runs=WAITING_RUNS if job.corpus.wait_for else 1,
        max_active_tasks=1_000,
        # Unpaused, it works on yesterday at once: somebody should have said so.
        is_paused_upon_creation=True,
        params=run_fields(),
        default_args={"owner": job.owner},
        doc_md=f"Job file: `{found.file}`\n\n{doc}",
        tags=["shardline", "scheduled"],
    ) as dag:
        job_tasks(JobSpec(found.file, asset_of(job, root), waiting_job=job))
    return dag


def _broken_dag(found: Scheduled) -> DAG:
    with DAG(
        found.dag_id,
        schedule=None,
        start_date=START,
        catchup=False,
        doc_md=f"### This job file is broken\n\n`{found.error}`\n\nRepair it; it is read again in a "
        "minute. No run is started meanwhile.",
        tags=["shardline", "broken"],
    ) as dag:

        @task(**RETRIES)
        def check_outcome() -> None:
            from shardline_airflow import stages

            stages.refuse(found.error)

        check_outcome()
    return dag
