"""Every figure of a report: what report.json holds and report.html shows.

A figure that is not known yet is None, so that the report of a job that failed half way says what
is there and never shows a zero that nobody counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from shardline.rows import EngineMetrics, Law, Seconds


class JobFacts(msgspec.Struct, frozen=True):
    """Who asked for what, and when it ran."""

    job_id: str
    name: str
    owner: str
    table: str
    table_uri: str
    partition: str | None
    run_on: str
    engine: str
    model: str
    model_commit: str
    output_form: str
    """choices, json_schema, text or vector."""
    planned_at: str
    finished_at: str | None
    """When the last attempt ended."""
    wall_s: float | None
    """From the first attempt's start to the last one's end."""
    shardline_version: str
    job_file: dict[str, object]


class Histogram(msgspec.Struct, frozen=True):
    """Counts between edges: len(edges) == len(counts) + 1."""

    edges: list[float]
    counts: list[int]
    is_exact: bool = True
    """False: spread evenly between the shortest and longest request of each shard."""


class InputFigures(msgspec.Struct, frozen=True):
    """The corpus as it was when the job was planned."""

    files: int
    size_bytes: int
    skipped: dict[str, int]
    """SkippedReason → files."""
    skipped_examples: list[str]


class ShardFigures(msgspec.Struct, frozen=True):
    """The shards of the job."""

    shards: int
    done: int
    requests: int
    size_bytes: int
    lengths: Histogram | None
    """Bytes of a request body."""


class Span(msgspec.Struct, frozen=True):
    """One attempt on the time axis, in seconds since the first one started."""

    shard: str
    attempt: str
    start_s: float
    end_s: float | None
    end: str | None
    """AttemptEnd; None: it vanished."""
    rows: int


class Trouble(msgspec.Struct, frozen=True):
    """Attempts that ended badly in the same way."""

    end: str
    message: str
    attempts: int
    shard: str
    attempt: str
    """One of them: its log is `logs/{shard}/{attempt}.log`."""


class WorkFigures(msgspec.Struct, frozen=True):
    """What the workers did, summed over all attempts."""

    attempts: int
    by_end: dict[str, int]
    """AttemptEnd → attempts; `vanished` for those that wrote no end."""
    seconds: Seconds
    rows: int
    """Rows that the attempts did, in all; rows done twice count twice."""
    prompt_tokens: int
    completion_tokens: int
    engine_restarts: int
    rows_per_s: float | None
    """Rows over the job's wall time."""
    completion_tokens_per_s: float | None
    metrics: EngineMetrics
    """mean_running and kv_cache_usage: means weighted by time; peak_rss_mb: the peak; else sums."""
    spans: list[Span]
    hosts: int
    troubles: list[Trouble] = []
    prompt_tokens_per_s: float | None = None
    rows_ahead: int = 0
    """Of `rows`, those that idle slots did for shards that nobody had started."""


class TokenFigures(msgspec.Struct, frozen=True):
    """Tokens of the results (a duplicate's answer is paid once and counted once)."""

    prompt: int
    completion: int
    results: int
    finish_reasons: dict[str, int]
    lengths: Histogram | None
    """Completion tokens of a result."""


class DeadExample(msgspec.Struct, frozen=True):
    """One dead letter, without any text of the document."""

    document_id: str
    source: str
    row: int
    custom_id: str
    message: str


class DeadFigures(msgspec.Struct, frozen=True):
    """The dead letters of one reason."""

    reason: str
    sentence: str
    can_replay: bool
    count: int
    examples: list[DeadExample]


class RejectedExample(msgspec.Struct, frozen=True):
    """Where a rejected row stands."""

    source: str
    row: int
    detail: str


class RejectedFigures(msgspec.Struct, frozen=True):
    """The rejected rows of one reason."""

    reason: str
    sentence: str
    count: int
    examples: list[RejectedExample]


class Sample(msgspec.Struct, frozen=True):
    """A document and its answer, side by side."""

    document_id: str
    source: str
    row: int
    text: str
    output: str
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    label: str | None


class Answer(msgspec.Struct, frozen=True):
    """One answer and how many published rows have it."""

    value: str
    rows: int


class Agreement(msgspec.Struct, frozen=True):
    """How often the output equals the carried right answer."""

    column: str
    rows: int
    """Published rows whose label is not null."""
    equal: int
    labels: list[str]
    outputs: list[str]
    table: list[list[int]]
    """table[label][output], in the orders above; the last of either may be `(other)`."""

    @property
    def share(self) -> float:
        return self.equal / self.rows if self.rows else 0.0


class VectorFigures(msgspec.Struct, frozen=True):
    """Embeddings: their length, and how long they are as arrows."""

    dimension: int
    least_norm: float
    mean_norm: float
    most_norm: float
    norms: Histogram | None
    """Norms of the results, by three digits."""


class PublishedFigures(msgspec.Struct, frozen=True):
    """The files of the dataset."""

    rows: int
    files: int
    size_bytes: int
    is_published: bool


class ValidationFigures(msgspec.Struct, frozen=True):
    """The Great Expectations gate."""

    success: bool
    rules: list[str]
    """What was checked, once it has passed."""
    data_docs: str
    """A link relative to report.html."""


class Report(msgspec.Struct, frozen=True):
    """The whole report."""

    made_at: str
    state: str
    """published, superseded, merged, settled, running, prepared or planned: how far the job came."""
    headline: str
    next_step: str
    job: JobFacts
    law: Law | None
    law_differences: list[str]
    input: InputFigures
    shards: ShardFigures | None
    work: WorkFigures | None
    tokens: TokenFigures | None
    dead: list[DeadFigures]
    dead_total: int | None
    rejected: list[RejectedFigures]
    answers: list[Answer]
    answers_other: int
    """Rows whose answer is not among `answers`."""
    agreement: Agreement | None
    samples: list[Sample]
    published: PublishedFigures | None
    validation: ValidationFigures | None
    vectors: VectorFigures | None = None


class _Explained(Protocol):
    @property
    def value(self) -> str: ...
    @property
    def sentence(self) -> str: ...


def sentence_of(reasons: Iterable[_Explained], value: str) -> str:
    """The sentence of a reason; empty for one that this version does not know."""
    return next((r.sentence for r in reasons if r.value == value), "")
