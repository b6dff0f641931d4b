"""Collect a report's figures from what the stages have left in the store.

A stage that has not run leaves its figures out. Counts come from the merge report, which counted
the files; before a merge there is no law to show, only how far the job is.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from shardline import __version__
from shardline.errors import JobNotReady, ObjectNotFound
from shardline.layout import published
from shardline.plan import timestamp
from shardline.report.attempts import finished_at, fold_attempts, read_attempts, read_last_words
from shardline.report.dataset import DatasetFigures, read_dataset
from shardline.report.figures import (
    InputFigures,
    JobFacts,
    PublishedFigures,
    Report,
    ShardFigures,
    ValidationFigures,
    WorkFigures,
)
from shardline.report.histograms import make_histogram, spread_histogram
from shardline.report.problems import read_dead, read_rejected
from shardline.report.samples import read_samples
from shardline.report.state import JobState, Standing, read_standing
from shardline.results.merge import MergeReport, read_merge_report
from shardline.results.outcome import say_replay
from shardline.results.publish import is_followed
from shardline.results.validate import Validation
from shardline.rows import Manifest, ShardEntry
from shardline.segments import done_shards
from shardline.shards.manifest import read_manifest, read_shards
from shardline.status.words import count_text

if TYPE_CHECKING:
    from shardline.job import JobFile
    from shardline.plan import Plan
    from shardline.store import Store

_EXACT_REQUESTS = 50_000
_SKIPPED_SHOWN = 10


def collect_report(store: Store, plan: Plan, now: datetime) -> Report:
    """Every figure that is known now."""
    job, standing = plan.job_file, read_standing(store, plan, now)
    manifest, shards = _or_none(read_manifest, store, plan), _or_none(read_shards, store, plan)
    merged: MergeReport | None = _or_none(read_merge_report, store, plan)
    attempts = read_attempts(store, plan)
    work = fold_attempts(attempts, read_last_words(store, plan, attempts))
    data = _dataset(store, plan, merged)
    done = _done(store, plan, shards or [])
    return Report(
        made_at=timestamp(now),
        state=standing.state.value,
        headline=make_headline(standing, merged),
        next_step=make_next_step(plan, standing, merged),
        job=_facts(store, plan, work, finished_at(attempts)),
        law=merged.law if merged else None,
        law_differences=merged.law.differences() if merged else [],
        input=_input(plan),
        shards=_shards(store, plan, manifest, shards, len(done)),
        work=work,
        tokens=data.tokens if data else None,
        dead=read_dead(store, plan, merged.dead_letters) if merged else [],
        dead_total=sum(merged.dead_letters.values()) if merged else None,
        rejected=read_rejected(store, plan, manifest.rejected_by_reason) if manifest else [],
        answers=data.answers if data else [],
        answers_other=data.answers_other if data else 0,
        agreement=data.agreement if data else None,
        samples=read_samples(store, plan, done) if job.report.samples else [],
        published=_published(merged, standing),
        validation=_validation(store, plan),
        vectors=data.vectors if data else None,
    )


def make_headline(standing: Standing, merged: MergeReport | None) -> str:
    """What came out, or how far the job is."""
    if merged is None:
        return standing.headline
    law, rows = merged.law, count_text(merged.rows, "row")
    said = f"{count_text(law.results, 'result')} and {count_text(law.duplicates, 'duplicate')}"
    verb = {
        JobState.PUBLISHED: f"{rows} published",
        JobState.SUPERSEDED: f"{rows}, replaced since by {_current_job(standing)}",
    }.get(standing.state, f"{rows} merged, not published")
    dead = f"; {count_text(law.dead_letters, 'dead letter')}" if law.dead_letters else ""
    return f"{verb}: {said}{dead}.{_say_replayed(merged)}"


def _say_replayed(merged: MergeReport) -> str:
    """What a replay has made of the dead letters that it started from."""
    found = merged.replayed
    if found is None:
        return ""
    ran = found.results + found.still_dead
    return (
        f" A replay: of {count_text(found.dead, 'dead letter')}, {found.harvested:,} had a result in"
        f" the segments, {ran:,} ran again and {found.results:,} of these have a result now."
    )


def make_next_step(plan: Plan, standing: Standing, merged: MergeReport | None) -> str:
    """The command that helps now; empty when nothing is left to do."""
    state = standing.state
    if state is JobState.PUBLISHED and merged is not None and merged.dead_letters:
        return f"{say_replay(plan.whole_id, merged.dead_letters)} runs the dead letters again."
    if state in (JobState.PUBLISHED, JobState.ABANDONED):
        return ""
    if state is JobState.SUPERSEDED and is_followed(plan, standing.publication):
        return f"`shardline report {_current_job(standing)}` shows the replay that is current now."
    if state is JobState.SUPERSEDED:
        return "Raise `rerun` in the job file to run it again, or publish it with --force."
    if state is JobState.RUNNING:
        return f"`shardline status {plan.job_id}` shows its progress."
    return f"`shardline resume {plan.job_id}` goes on from here."


def _current_job(standing: Standing) -> str:
    return standing.publication.job_id if standing.publication else "another job"


def _facts(store: Store, plan: Plan, work: WorkFigures | None, finished: str | None) -> JobFacts:
    job = plan.job_file
    ends = [s.end_s if s.end_s is not None else s.start_s for s in work.spans] if work else []
    return JobFacts(
        job_id=plan.job_id,
        name=job.name,
        owner=job.owner,
        table=job.table,
        table_uri=store.uri_of(published(job.table)),
        partition=plan.partition,
        run_on=job.run_on,
        engine=job.engine.engine,
        model=job.engine.model,
        model_commit=plan.model_commit,
        output_form=_form(job),
        planned_at=plan.planned_at,
        finished_at=finished,
        wall_s=max(ends) if ends else None,
        shardline_version=__version__,
        job_file=dict(plan.job),
    )


def _form(job: JobFile) -> str:
    if job.kind == "embedding":
        return "vector"
    return next((n for n in ("choices", "json_schema") if getattr(job.output, n)), "text")


def _input(plan: Plan) -> InputFigures:
    return InputFigures(
        files=len(plan.inputs),
        size_bytes=sum(f.size_bytes for f in plan.inputs),
        skipped=dict(sorted(Counter(s.reason for s in plan.skipped).items())),
        skipped_examples=[s.source for s in plan.skipped[:_SKIPPED_SHOWN]],
    )


def _shards(
    store: Store,
    plan: Plan,
    manifest: Manifest | None,
    shards: list[ShardEntry] | None,
    done: int,
) -> ShardFigures | None:
    if manifest is None or shards is None:
        return None
    lengths = None
    if manifest.requests <= _EXACT_REQUESTS:
        lengths = _exact_lengths(store, plan, shards)
    return ShardFigures(
        shards=manifest.shards,
        done=done,
        requests=manifest.requests,
        size_bytes=manifest.size_bytes,
        lengths=make_histogram(lengths.items()) if lengths else spread_histogram(shards),
    )


def _exact_lengths(store: Store, plan: Plan, shards: list[ShardEntry]) -> Counter[int] | None:
    """Bytes of each request's canonical body; None once shard files are cleaned up (keep_days)."""
    lengths: Counter[int] = Counter()
    for entry in shards:
        with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
            try:
                path = store.fetch(plan.layout.shard(entry.shard), Path(scratch))
            except ObjectNotFound:
                return None
            lengths.update(_body_lengths(path))
    return lengths


def _body_lengths(path: Path) -> Iterator[int]:
    with path.open("rb") as file:
        for line in file:
            body = orjson.loads(line)["body"]
            del body["model"]
            yield len(orjson.dumps(body, option=orjson.OPT_SORT_KEYS))


def _done(store: Store, plan: Plan, shards: list[ShardEntry]) -> list[ShardEntry]:
    names = done_shards(store, plan.layout)
    return [entry for entry in shards if entry.shard in names]


def _dataset(store: Store, plan: Plan, merged: MergeReport | None) -> DatasetFigures | None:
    """None before a merge, and when a later vacuum has taken this job's files away."""
    if merged is None:
        return None
    try:
        return read_dataset(store, plan, merged)
    except ObjectNotFound:
        return None


def _published(merged: MergeReport | None, standing: Standing) -> PublishedFigures | None:
    if merged is None:
        return None
    return PublishedFigures(
        rows=merged.rows,
        files=len(merged.files),
        size_bytes=sum(f.size_bytes for f in merged.files),
        is_published=standing.state is JobState.PUBLISHED,
    )


def _validation(store: Store, plan: Plan) -> ValidationFigures | None:
    """The record is only put when the gate was passed; its pages are there either way."""
    page = f"{plan.layout.data_docs}index.html"
    link = page.removeprefix(plan.layout.prefix)
    found = store.read_or_none(plan.layout.validation)
    if found is not None:
        return ValidationFigures(True, msgspec.json.decode(found, type=Validation).rules, link)
    return ValidationFigures(False, [], link) if store.exists(page) else None


def _or_none(read: Any, store: Store, plan: Plan) -> Any:
    """A stage's report, or None before the stage has ended."""
    try:
        return read(store, plan)
    except JobNotReady:
        return None
