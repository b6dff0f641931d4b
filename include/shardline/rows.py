"""Every row's shape on its way: request, result, rejected row; and a worker's own records.

Requests and results are lines of OpenAI's batch files, so any tool that speaks the format can run
or check a shard. Nothing here does any I/O.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shardline.reasons import AttemptEnd, PodOutcome


class Request(msgspec.Struct, frozen=True):
    """One line of a shard file (OpenAI batch input). `custom_id` is the fingerprint."""

    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


class ErrorBody(msgspec.Struct, frozen=True):
    """Why a request has no result: `code` is a DeadLetterReason."""

    code: str
    message: str
    raw_output: str | None = None
    """The text that broke the choices or the schema, kept for people."""


class Response(msgspec.Struct, frozen=True):
    """What the engine answered; `body` is what OpenAI's API for the request's `url` answers."""

    status_code: int
    request_id: str
    body: dict[str, Any]


class Result(msgspec.Struct, frozen=True):
    """One line of results or of a segment (OpenAI batch output): a response or an error."""

    id: str
    custom_id: str
    response: Response | None = None
    error: ErrorBody | None = None

    @property
    def is_dead(self) -> bool:
        return self.error is not None


class RejectedRow(msgspec.Struct, frozen=True):
    """A row that is no document: where it stands, and why (RejectedReason)."""

    source: str
    row: int
    reason: str
    detail: str = ""


class ShardEntry(msgspec.Struct, frozen=True):
    """A shard as its sidecar and the manifest describe it."""

    shard: str
    requests: int
    documents: int
    """Requests and the duplicates that hang on them."""
    size_bytes: int
    sha256: str
    min_length: int
    """Bytes of the shortest and the longest request body."""
    max_length: int


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The immutable description of a job's shards: totals, and where the list is."""

    job_id: str
    rows_read: int
    documents: int
    rejected: int
    left_out: int
    requests: int
    duplicates: int
    shards: int
    size_bytes: int
    shard_table_sha256: str
    rejected_by_reason: dict[str, int]
    carry_types: dict[str, str]
    """Column → string, int64, double or bool: what the published table will hold."""
    parent: str | None = None
    """The job of which this one is a replay: then rows read and rejected are the parent's."""


class Seconds(msgspec.Struct):
    """Where an attempt's wall time went, in seconds."""

    start: float = 0.0
    """Until the engine was ready."""
    useful: float = 0.0
    """Slots full, or rows waiting for none."""
    tail: float = 0.0
    """Nothing left to feed, some slots idle."""
    stall: float = 0.0
    """No row ended although rows were in flight, until the stall timer rang."""
    restart: float = 0.0
    """Engine restarts inside the attempt."""
    drain: float = 0.0
    """From the signal to the end."""
    ahead: float = 0.0
    """Own rows committed, slots at work on rows of other shards."""


class Counts(msgspec.Struct):
    """What an attempt did itself (resumed rows are not in it)."""

    results: int = 0
    dead: int = 0
    ahead: int = 0
    """Rows of other shards, committed there while slots were idle here."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    segments: int = 0
    segment_bytes: int = 0
    engine_restarts: int = 0


class EngineMetrics(msgspec.Struct):
    """What the engine says of itself; None where an engine does not say it."""

    mean_running: float | None = None
    max_num_seqs: int | None = None
    kv_cache_usage: float | None = None
    preemptions: int | None = None
    prefix_cache_queries: int | None = None
    prefix_cache_hits: int | None = None
    prompt_tokens_computed: int | None = None
    """Tokens of prompts that the engine computed, and those that the prefix cache spared it."""
    prompt_tokens_cached: int | None = None
    engine_steps: int | None = None
    peak_rss_mb: int | None = None


class Attempt(msgspec.Struct):
    """One run of a worker on a shard, written by that worker only (PROTOCOL 4, 9).

    `fed` holds closed ranges of line numbers (from 0) of the shard file, written before the rows
    reach the engine. Without `end`, the fed rows that no segment holds were in flight.
    """

    attempt: str
    shard: str
    generation: int
    host: str
    pid: int
    started_at: str
    pod_uid: str | None = None
    node: str | None = None
    fed: list[tuple[int, int]] = []
    suspects: list[list[int]] = []
    """Groups of line numbers that were fed apart, each recorded before it was fed."""
    convictions: list[int] = []
    ahead: list[str] = []
    """Shards that it worked ahead on, each recorded before its rows were fed."""
    resumed_rows: int = 0
    seconds: Seconds = msgspec.field(default_factory=Seconds)
    counts: Counts = msgspec.field(default_factory=Counts)
    metrics: EngineMetrics = msgspec.field(default_factory=EngineMetrics)
    end: AttemptEnd | None = None
    exit_code: int | None = None
    ended_at: str | None = None
    message: str = ""
    """One line for whoever is on call."""
    pod_outcome: PodOutcome | None = None
    """How its pod ended, by who watched it; None without a pod, or when nobody saw the end."""


class Progress(msgspec.Struct, frozen=True):
    """A worker's latest word on a shard, rewritten at every segment."""

    shard: str
    attempt: str
    generation: int
    at: str
    """ISO 8601, UTC."""
    state: str
    """starting, running, draining or ended."""
    rows_total: int
    rows_done: int
    """Results and dead letters in committed segments, resumed ones too."""
    rows_dead: int
    rows_per_s: float
    prompt_tokens_per_s: float
    completion_tokens_per_s: float
    metrics: EngineMetrics = msgspec.field(default_factory=EngineMetrics)


class Law(msgspec.Struct, frozen=True):
    """The counts that must add up, for a shard (rows_read = documents) or a job (PROTOCOL 6)."""

    rows_read: int
    documents: int
    rejected: int
    left_out: int
    results: int
    duplicates: int
    dead_letters: int

    def differences(self) -> list[str]:
        """Each broken equation with its two sides; empty when the law holds."""
        read = self.documents + self.rejected + self.left_out
        ended = self.results + self.duplicates + self.dead_letters
        broken = []
        if self.rows_read != read:
            broken.append(
                f"rows read {self.rows_read} != documents {self.documents} + rejected {self.rejected}"
                f" + left out {self.left_out} = {read} (difference {self.rows_read - read:+d})"
            )
        if self.documents != ended:
            broken.append(
                f"documents {self.documents} != results {self.results} + duplicates {self.duplicates}"
                f" + dead letters {self.dead_letters} = {ended} (difference {self.documents - ended:+d})"
            )
        return broken
