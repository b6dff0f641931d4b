"""How large a job will be, in seconds: from Parquet footers and a survey of the other files."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardline.corpus.bounds import bucket_count
from shardline.corpus.inputs import list_corpus
from shardline.corpus.plan_job import check_partition
from shardline.corpus.requests import custom_id, fingerprint_of, request_line
from shardline.corpus.survey import survey_corpus
from shardline.errors import CorpusError
from shardline.job import JobFile
from shardline.settings import Settings


@dataclass(frozen=True)
class Estimate:
    """What a job over this corpus will be, before duplicates are known."""

    files: int
    skipped_files: int
    input_bytes: int
    rows: int
    documents: int
    request_bytes: int
    """Bytes of all shard files."""
    shards: int
    surveyed: int
    """Documents that were looked at."""


def estimate_job(job: JobFile, *, settings: Settings, partition: str | None) -> Estimate:
    """Estimate a job without planning it.

    Raises:
        JobFileError, CorpusError, NotAllowed: as plan_job.
    """
    check_partition(job, partition)
    listing = list_corpus(job.corpus_uri(partition), settings.corpus_prefixes)
    if listing.problems:
        raise CorpusError(
            f"{len(listing.problems)} files of the corpus cannot be used", listing.problems
        )
    survey = survey_corpus(job, listing.inputs)
    documents = round(survey.documents)
    if job.corpus.sample:
        documents = min(documents, job.corpus.sample.rows)
    share = documents / survey.documents if survey.documents else 0.0
    size = survey.request_bytes * share + documents * _line_overhead(job)
    return Estimate(
        files=len(listing.inputs),
        skipped_files=len(listing.skipped),
        input_bytes=sum(f.size_bytes for f in listing.inputs),
        rows=round(survey.rows),
        documents=documents,
        request_bytes=round(size),
        shards=expected_shards(job, documents, size),
        surveyed=len(survey.keys),
    )


def expected_shards(job: JobFile, documents: int, request_bytes: float) -> int:
    """Shards never cross a bucket, so there is at least one per bucket."""
    if not documents:
        return 0
    limits = job.shards
    by_limits = max(
        math.ceil(documents / limits.max_requests), math.ceil(request_bytes / limits.max_bytes)
    )
    return max(1, by_limits, min(documents, bucket_count(request_bytes)))


def _line_overhead(job: JobFile) -> int:
    """Bytes of a request line beside its body."""
    body = b"{}"
    return len(request_line(job, body, custom_id(job, fingerprint_of(body), "", 1))) - len(body)
