"""shardline plan: how large a job is, estimated in seconds or counted exactly. Runs no model."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec

from shardline.cli.run_job import prepare_job
from shardline.cli.summary import rejected_text, root_option
from shardline.errors import CorpusError, StoreUnavailable
from shardline.shards.manifest import read_manifest
from shardline.status.words import bytes_text, count_text

if TYPE_CHECKING:
    from shardline.cli.screen import Screen
    from shardline.job import JobFile
    from shardline.plan import Plan
    from shardline.settings import Settings
    from shardline.store import Store


def show_estimate(
    job: JobFile, settings: Settings, partition: str | None, screen: Screen, *, as_json: bool
) -> None:
    """What footers and a survey of the files say.

    Raises:
        CorpusError: nothing that was looked at is a document.
        ModelNotFound: the model is not there, or not for us.
    """
    from shardline.corpus.estimate import estimate_job

    unchecked = _check_model(job)
    found = estimate_job(job, settings=settings, partition=partition)
    if not found.documents:
        raise CorpusError(
            f"{job.corpus_uri(partition)}: no row that was looked at is a document; check the "
            f"columns in `{job.form.asks}`, `corpus.id`; `shardline plan JOBFILE --exact` names the reasons"
        )
    if as_json:
        screen.out(msgspec.json.encode(dataclasses.asdict(found)).decode())
        return
    skipped = f" ({found.skipped_files:,} skipped)" if found.skipped_files else ""
    screen.say(
        f"corpus     {count_text(found.files, 'file')}{skipped}, {bytes_text(found.input_bytes)}"
    )
    screen.say(f"rows       about {found.rows:,}")
    screen.say(f"documents  about {found.documents:,}, before duplicates are known")
    screen.say(f"shards     about {found.shards:,}, {bytes_text(found.request_bytes)} of requests")
    screen.say(f"model      {job.engine.model} ({job.engine.engine}, {job.run_on})")
    if unchecked:
        screen.say(f"           not checked: {unchecked}")
    screen.say(f"table      {job.table}")
    screen.say(f"estimated from {count_text(found.surveyed, 'document')}; --exact counts them all")


def _check_model(job: JobFile) -> str:
    """Why the model could not be looked for now; an estimate needs no network."""
    from shardline.models import check_model

    try:
        check_model(job.engine)
    except StoreUnavailable as error:
        return str(error)
    return ""


def show_exact(store: Store, plan: Plan, screen: Screen, *, as_json: bool) -> None:
    """Read the corpus and cut the shards, which a later run then finds done."""
    prepare_job(store, plan, screen.silent() if as_json else screen)
    manifest = read_manifest(store, plan)
    if as_json:
        screen.out(msgspec.json.encode(manifest).decode())
        return
    if manifest.rejected:
        screen.say(f"rejected: {rejected_text(manifest.rejected_by_reason)}")
    screen.say(
        f"{count_text(manifest.requests, 'request')} of {bytes_text(manifest.size_bytes)}, "
        f"{count_text(manifest.duplicates, 'duplicate')} that cost nothing"
    )
    screen.say(f"next: shardline resume {plan.job_id}{root_option(store)}")
