"""plan_job: fix what a job is. Its inputs, its model, its buckets, and the id that hashes them.

The plan is put once. Who loses the race, or comes again, uses the plan that is there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

import msgspec

from shardline import __version__
from shardline.corpus.arrival import check_arrived
from shardline.corpus.bounds import BUCKET_BYTES, Bound, bucket_count, choose_bounds
from shardline.corpus.inputs import Listing, list_corpus
from shardline.corpus.survey import SURVEYED_DOCUMENTS, survey_corpus
from shardline.errors import CorpusError, FieldProblem, JobFileError
from shardline.images import pin_image
from shardline.job import JobFile
from shardline.layout import NO_PARTITION, PARTITION
from shardline.models import pin_model
from shardline.plan import (
    InputFile,
    Plan,
    encode_plan,
    keep_settings,
    make_job_id,
    read_plan,
    timestamp,
)
from shardline.settings import Settings
from shardline.store import Store

log = logging.getLogger(__name__)

MAX_TASKS = 1_000
"""Airflow's own limit of a mapped task (core.max_map_length)."""
_SPLIT_BYTES = 128 << 20
_PACKED_FACTOR = (
    4  # text packs to about a quarter: a packed byte is as much work as four plain ones
)
_KEYS_PER_BUCKET = 20
_MAX_PARTITION = 60


def plan_job(
    job: JobFile, *, store: Store, settings: Settings, partition: str | None, now: datetime
) -> Plan:
    """The plan of this job over the corpus as it is now; the same one as long as nothing changed.

    Raises:
        JobFileError: a partition that is needed, or is no name. CorpusError: no corpus, one that has
        not arrived (corpus.wait_for), or files that cannot be used. NotAllowed: a corpus outside settings.corpus_prefixes.
        ModelNotFound: no such model. WrongInput: a job on GPUs without an image for its pods.
    """
    check_partition(job, partition)
    check_arrived(job.wait_uri(partition), settings.corpus_prefixes)
    listing = list_corpus(job.corpus_uri(partition), settings.corpus_prefixes)
    if listing.problems:
        raise CorpusError(
            f"{len(listing.problems)} files of the corpus cannot be used", listing.problems
        )
    image = pin_image(job, settings.worker_image)
    commit = pin_model(job.engine)
    job_id = make_job_id(job, partition, commit, listing.inputs)
    plan = _make_plan(job, job_id, partition, commit, listing, now)
    plan = msgspec.structs.replace(plan, worker_image=image)
    if not store.exists(plan.layout.plan):
        bounds = _find_bounds(job, listing.inputs)
        plan = msgspec.structs.replace(
            plan, bounds=bounds, bucket_sets=plan_ranges([1] * (len(bounds) + 1), MAX_TASKS)
        )
        outcome = store.put_once(plan.layout.plan, encode_plan(plan))
        log.info("job %s: plan %s", job_id, outcome.value)
    return keep_settings(store, read_plan(store, job_id), job, image)


def check_partition(job: JobFile, partition: str | None) -> None:
    """Refuse a partition that is no name of its own. Raises JobFileError."""
    if partition is None:
        return
    if partition.lower() == NO_PARTITION:
        problem = f"{partition!r} is reserved for jobs without a partition"
    elif not PARTITION.fullmatch(partition) or len(partition) > _MAX_PARTITION:
        problem = (
            f"expected a date or a word of at most {_MAX_PARTITION} letters, digits, - _ . that"
            f" begins and ends with a letter or digit, e.g. 2026-11-28; found {partition!r}"
        )
    else:
        return
    raise JobFileError(job.name, [FieldProblem("partition", problem)])


def _make_plan(
    job: JobFile,
    job_id: str,
    partition: str | None,
    commit: str,
    listing: Listing,
    now: datetime,
) -> Plan:
    return Plan(
        job_id=job_id,
        job=job.model_dump(mode="json"),
        partition=partition,
        planned_at=timestamp(now),
        model_commit=commit,
        inputs=listing.inputs,
        skipped=listing.skipped,
        splits=plan_splits(listing.inputs),
        bounds=[],
        bucket_sets=[(0, 1)],
        version=__version__,
    )


def plan_splits(inputs: Sequence[InputFile]) -> list[tuple[int, int]]:
    """Ranges of inputs with about equal work, one scan task each."""
    work = [f.size_bytes * (_PACKED_FACTOR if _is_packed(f) else 1) for f in inputs]
    return plan_ranges(work, min(MAX_TASKS, 1 + sum(work) // _SPLIT_BYTES))


def _is_packed(file: InputFile) -> bool:
    return not file.source.lower().endswith((".jsonl", ".ndjson", ".csv"))


def plan_ranges(work: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Cut 0..len(work) into at most `most` ranges [first, last) of about equal work."""
    total, done, first = sum(work), 0, 0
    ranges: list[tuple[int, int]] = []
    for n, amount in enumerate(work[:-1]):
        done += amount
        # cut where stopping short of the equal share errs less than going beyond it
        goal = total * (len(ranges) + 1) / most
        if len(ranges) < most - 1 and done + work[n + 1] / 2 > goal:
            ranges.append((first, n + 1))
            first = n + 1
    return [*ranges, (first, len(work))]


def _find_bounds(job: JobFile, inputs: list[InputFile]) -> list[Bound]:
    guess = bucket_count(sum(f.size_bytes for f in inputs))
    survey = survey_corpus(job, inputs, max(SURVEYED_DOCUMENTS, _KEYS_PER_BUCKET * guess))
    expected = survey.request_bytes
    if job.corpus.sample and survey.documents:
        expected *= min(1.0, job.corpus.sample.rows / survey.documents)
    if expected <= BUCKET_BYTES:
        return []
    return choose_bounds(survey.keys, bucket_count(expected))
