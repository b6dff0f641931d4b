"""The whole job in this process: the stages in their order, with a loop where Airflow has waves.

It may be killed at any moment and started again: every stage finds what exists and goes on. On
SIGTERM or Ctrl-C the workers drain: they finish the rows that run, commit them, and end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shardline.cli.boundary import Stopped
from shardline.cli.run_shards import ShardLoop, Stopper
from shardline.errors import ReplayRefused, ShardlineError
from shardline.patience import outlast
from shardline.report.report_job import report_job
from shardline.report.state import JobState, Standing, read_standing
from shardline.results.publish import is_followed
from shardline.status.words import count_text

if TYPE_CHECKING:
    from shardline.cli.screen import Screen
    from shardline.plan import Plan
    from shardline.store import Store

log = logging.getLogger(__name__)


def run_job(
    store: Store, plan: Plan, screen: Screen, *, force: bool = False, workers: int = 1
) -> Standing:
    """Run whatever of the job is not done, publish it and report it.

    Raises:
        Stopped: told to stop; what is committed stays.
        ShardlineError: a stage said no. The report says what is there.
    """
    standing = read_standing(store, plan, datetime.now(UTC))
    if standing.state is JobState.ABANDONED:
        raise ReplayRefused(f"job {plan.job_id}: this replay was abandoned")
    if is_followed(plan, standing.publication) and standing.publication and not force:
        screen.say(
            f"job {plan.job_id}: already done, and replayed as {standing.publication.job_id}"
        )
        return standing
    if standing.state is JobState.PUBLISHED:
        screen.say(f"job {plan.job_id}: already done")
        if not store.exists(plan.layout.report_html):
            report_job(store, plan)
        return standing
    if plan.job_file.run_on == "gpu":
        screen.say(
            f"job {plan.job_id}: run_on is gpu, and this command runs its shards on this machine; in"
            " pods Airflow runs them (batch_inference, replay_dead_letters)"
        )
    prepare_job(store, plan, screen)
    try:
        with Stopper() as stopper:
            generation = ShardLoop(store, plan, screen, stopper, workers).run()
        finish_job(store, plan, screen, generation, force=force)
    except (ShardlineError, Stopped):
        _report_what_is_there(store, plan)
        raise
    return read_standing(store, plan, datetime.now(UTC))


def prepare_job(store: Store, plan: Plan, screen: Screen) -> None:
    """Corpus to shards: nothing of it runs twice, and a second run writes the same bytes."""
    if plan.replay is not None:
        _prepare_replay(store, plan, screen)
        return
    from shardline.corpus.ids import check_ids
    from shardline.corpus.scan import scan_corpus
    from shardline.results.schema import check_schema
    from shardline.shards.cut import cut_shards
    from shardline.shards.manifest import write_manifest

    if not store.exists(plan.layout.manifest):
        for split in screen.each(range(len(plan.splits)), "reading the corpus:", "split"):
            scan_corpus(store, plan, split)
        with screen.step("checking ids"):
            check_ids(store, plan)
        for bucket_set in screen.each(range(len(plan.bucket_sets)), "cutting shards:", "set"):
            cut_shards(store, plan, bucket_set)
    manifest = write_manifest(store, plan)
    check_schema(store, plan)
    requests = count_text(manifest.requests, "request")
    screen.say(
        f"job {plan.job_id}: {count_text(manifest.rows_read, 'row')} read ="
        f" {manifest.documents:,} documents + {manifest.rejected:,} rejected"
        f" + {manifest.left_out:,} left out; {requests} in {count_text(manifest.shards, 'shard')}"
    )


def _prepare_replay(store: Store, plan: Plan, screen: Screen) -> None:
    """Dead letters to shards: harvest first, then cut what is to run."""
    from shardline.results.cut_replay import cut_replay
    from shardline.results.schema import check_schema

    with screen.step("harvesting and cutting dead letters"):
        cut = cut_replay(store, plan)
    check_schema(store, plan)
    screen.say(
        f"job {plan.job_id}: {count_text(cut.dead, 'dead letter')} = {cut.requests:,} to run in"
        f" {count_text(len(cut.shards), 'shard')} + {cut.harvested:,} whose results were found"
        f" + {cut.untouched:,} untouched"
    )


def finish_job(store: Store, plan: Plan, screen: Screen, generation: int, *, force: bool) -> None:
    """Results to a published table and its report; `check_outcome` has the last word.

    The shards may have run for days: an outage of the store is sat out, as Airflow's stages do.
    """
    from shardline.results.merge import merge_shards
    from shardline.results.outcome import check_outcome
    from shardline.results.publish import publish_results
    from shardline.results.settle import settle_shards
    from shardline.results.validate import validate_results

    stages: tuple[tuple[str, Callable[[], object]], ...] = (
        ("settling shards", lambda: settle_shards(store, plan, generation=generation)),
        ("merging results with documents", lambda: merge_shards(store, plan)),
        ("validating", lambda: validate_results(store, plan)),
        ("publishing", lambda: publish_results(store, plan, force=force)),
        ("writing the report", lambda: report_job(store, plan)),
    )
    for text, stage in stages:
        with screen.step(text):
            outlast(stage)  # what a stage has done it finds done
    found = check_outcome(store, plan).publication
    screen.say(
        f"job {plan.job_id}: published {count_text(found.rows, 'row')} to {found.table} "
        f"dt={found.partition}, version {found.version} of the table"
    )


def _report_what_is_there(store: Store, plan: Plan) -> None:
    """A report of a job that failed is an extra: it must not hide why the job failed."""
    try:
        report_job(store, plan)
    except ShardlineError as error:
        log.warning("job %s: no report could be written: %s", plan.job_id, error)
