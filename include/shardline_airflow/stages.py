"""What the task bodies call: each stage of the library, with the store and the plan opened for it.

A stage that no retry can help ends its task with one line that says why (`GivenUp`); what may heal
is raised as it is, and Airflow tries again. An outage of the store is sat out first; but not by the two
that plan: there somebody waits for the answer.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from shardline.errors import (
    Cancelled,
    JobNotReady,
    ObjectNotFound,
    PermanentError,
    SickMachine,
    StoreRefused,
    StoreUnavailable,
    WrongInput,
)
from shardline.patience import PATIENCE_S, Outage
from shardline.settings import Settings
from shardline_airflow.retries import GivenUp

if TYPE_CHECKING:
    from shardline.plan import Plan
    from shardline.store import Store

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

MAX_OUTAGES = 20
"""More than that is one object that cannot be had, at the end of each long try."""


def gives_up(stage: Callable[P, T]) -> Callable[P, T]:
    """Turn a PermanentError into the last line of the task's log, without a traceback."""

    @functools.wraps(stage)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return stage(*args, **kwargs)
        except SickMachine:  # another try may run on another machine
            raise
        except PermanentError as error:
            log.error("%s: %s", type(error).__name__, error)
            raise GivenUp(str(error)) from None

    return run


def sits_out(stage: Callable[P, T]) -> Callable[P, T]:
    """Call a stage again while the store does not answer, or refuses our keys, as long as workers do.

    Airflow's own retries are a few within a minute: a job of days would be red for an outage that its
    workers do not even notice, or for keys that are just being renewed: its plan was written with good
    ones. What a stage has done it finds done.
    """

    @functools.wraps(stage)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        outage, outages = None, 0
        while True:
            began = time.monotonic()
            try:
                return stage(*args, **kwargs)
            except ObjectNotFound:  # a StoreRefused that no waiting brings back
                raise
            except (StoreUnavailable, StoreRefused) as error:
                # where it has worked in between, it is another outage
                if outage is None or time.monotonic() - began > PATIENCE_S:
                    outage, outages = Outage(PATIENCE_S), outages + 1
                if outages > MAX_OUTAGES:
                    raise
                pause_s = outage.pause_s(error)
            time.sleep(pause_s)

    return run


def open_job(job_id: str) -> tuple[Store, Plan]:
    """The store of this deployment and the plan of one job in it."""
    from shardline.plan import read_plan
    from shardline_airflow.buckets import open_root

    store = open_root(Settings())
    return store, read_plan(store, job_id)


@gives_up
def refuse(why: str) -> None:
    """End a task of a dag whose job file is broken."""
    raise WrongInput(why)


@gives_up
def plan_job(job_file: str | None, params: Mapping[str, Any], partition_key: str | None) -> Plan:
    """Plan the job that a run means; the same run means the same job for ever."""
    from shardline.corpus.plan_job import plan_job
    from shardline.runners.gpu.check import check_gpu_job
    from shardline_airflow.buckets import open_root
    from shardline_airflow.form import job_of

    settings = Settings()
    chosen = dict(params) | ({"job_file": job_file, "job": None} if job_file else {})
    job = job_of(chosen, settings.jobs_dir)
    check_gpu_job(job, settings.root, os.environ)
    plan = plan_job(
        job,
        store=open_root(settings),
        settings=settings,
        partition=partition_key or params.get("partition"),
        now=datetime.now(UTC),
    )
    log.info("job %s: %d files in %d splits", plan.job_id, len(plan.inputs), len(plan.splits))
    return plan


@gives_up
def open_replay(params: Mapping[str, Any], run: str) -> str:
    """The replay that a run's form means: the same run means the same replay for ever.

    Where nothing is left to replay it is the job that is current: all stages after this one then
    find their work done, and the last says so.
    """
    from shardline.cli.find import find_job
    from shardline.plan import read_plan
    from shardline.results.open_replay import open_replay
    from shardline.results.publish import current_publication
    from shardline.results.wish import changed_job
    from shardline.runners.gpu.check import check_gpu_job
    from shardline_airflow.buckets import open_root
    from shardline_airflow.replay_form import wish_of

    settings = Settings()
    store = open_root(settings)
    plan = find_job(store, params["job"] or "")
    parent = read_plan(store, plan.whole_id)
    # of the parent: its settings are what a wish changes, whatever a replay between had changed
    wish = wish_of(params, settings.jobs_dir, parent.job_file.run_on)
    check_gpu_job(changed_job(parent, wish), settings.root, os.environ)
    image = settings.worker_image
    now = datetime.now(UTC)
    found = open_replay(store, plan, wish, now=now, opened_by=run, worker_image=image)
    if found is not None:
        return found.job_id
    current = current_publication(store, plan.job_file.table, plan.partition)
    assert current
    log.info("job %s: nothing to replay", plan.whole_id)
    return current.job_id


@gives_up
@sits_out
def cut_replay(job_id: str) -> None:
    """Harvest, cut, and write manifest and schema; nothing for a job that is no replay."""
    from shardline.results.cut_replay import cut_replay
    from shardline.results.schema import check_schema

    store, plan = open_job(job_id)
    if plan.replay is not None:
        cut_replay(store, plan)
    check_schema(store, plan)


@gives_up
@sits_out
def scan_corpus(job_id: str, split: int) -> None:
    from shardline.corpus.scan import scan_corpus

    scan_corpus(*open_job(job_id), split)


@gives_up
@sits_out
def check_ids(job_id: str) -> int:
    """Check the ids; return how many bucket sets are to be cut."""
    from shardline.corpus.ids import check_ids

    store, plan = open_job(job_id)
    check_ids(store, plan)
    return len(plan.bucket_sets)


@gives_up
@sits_out
def cut_shards(job_id: str, bucket_set: int) -> None:
    from shardline.shards.cut import cut_shards

    cut_shards(*open_job(job_id), bucket_set)


@gives_up
@sits_out
def write_manifest(job_id: str) -> None:
    """Write the manifest, and refuse a schema that the published table cannot take."""
    from shardline.results.schema import check_schema
    from shardline.shards.manifest import write_manifest

    store, plan = open_job(job_id)
    write_manifest(store, plan)
    check_schema(store, plan)


@gives_up
@sits_out
def settle_shards(job_id: str, generation: int) -> None:
    from shardline.results.settle import settle_shards

    settle_shards(*open_job(job_id), generation=generation)


@gives_up
@sits_out
def merge_shards(job_id: str) -> None:
    from shardline.results.merge import merge_shards

    merge_shards(*open_job(job_id))


@gives_up
@sits_out
def validate_results(job_id: str) -> None:
    from shardline.results.validate import validate_results

    validate_results(*open_job(job_id))


@gives_up
@sits_out
def publish_results(job_id: str, *, force: bool) -> dict[str, Any]:
    """Publish; return what a consumer of the asset needs: partition, rows, version, table, uri.

    Airflow wakes consumers whenever this task succeeds; `is_new` tells them if there is news.
    """
    from shardline.layout import published
    from shardline.results.publish import publish_results

    store, plan = open_job(job_id)
    publication = publish_results(store, plan, force=force)
    table = plan.job_file.table
    if not publication.is_new:
        log.info(
            "job %s: already published, %d rows as version %d of %s",
            job_id,
            publication.rows,
            publication.version,
            table,
        )
    return {
        "job_id": job_id,
        "table": table,
        "uri": store.uri_of(published(table)),
        "partition": plan.partition,
        "rows": publication.rows,
        "version": publication.version,
        "is_new": publication.is_new,
    }


@gives_up
@sits_out
def report_job(job_id: str) -> None:
    from shardline.report.report_job import report_job

    report_job(*open_job(job_id))


@gives_up
@sits_out
def check_outcome(job_id: str | None, states: Mapping[str, str]) -> str:
    """The job's outcome in one line; red when a task of this run failed, or it is not published.

    The tasks come first: a job that was published before stays published when its merge, run
    again, finds the law broken, and such a run must not be green.
    """
    from shardline.results.outcome import check_outcome

    failed = sorted(task for task, state in states.items() if state == "failed")
    if failed or job_id is None:
        where = f"job {job_id}: " if job_id else ""
        named = ", ".join(failed) or "the first task"
        raise JobNotReady(
            f"{where}{named} failed; the end of its log says why. "
            "Clear it, with what follows it, to go on from there"
        )
    outcome = check_outcome(*open_job(job_id))
    log.info("%s", outcome.line)
    return outcome.line


@gives_up
@sits_out
def unfinished_shards(job_id: str, lo: int, hi: int, generation: int) -> list[int]:
    """The numbers of a wave's shards that have no results. Raises Cancelled (PROTOCOL 20)."""
    from shardline.runners.generations import is_cancelled

    store, plan = open_job(job_id)
    if is_cancelled(store, job_id, generation):
        raise Cancelled(f"job {job_id}: generation {generation} was cancelled")
    missing = _without_results(store, plan, lo, hi)
    log.info("job %s: shards %d to %d, %d without results", job_id, lo, hi - 1, len(missing))
    return missing


@gives_up
@sits_out
def check_wave(job_id: str, lo: int, hi: int) -> None:
    """Red while a shard of the wave has no results: dead, not run, or not yet sealed."""
    store, plan = open_job(job_id)
    if missing := _without_results(store, plan, lo, hi):
        shown = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
        raise JobNotReady(
            f"job {job_id}: {len(missing)} of {hi - lo} shards have no results (numbers {shown}); "
            "the log of each infer_shard says why"
        )
    log.info("job %s: all %d shards of this wave have results", job_id, hi - lo)


def _without_results(store: Store, plan: Plan, lo: int, hi: int) -> list[int]:
    from shardline.shards.manifest import read_shards

    layout = plan.layout
    shards = read_shards(store, plan)[lo:hi]
    return [n for n, s in enumerate(shards, lo) if not store.exists(layout.results(s.shard))]
