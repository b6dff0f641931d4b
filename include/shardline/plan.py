"""The plan: the immutable description of a job's inputs and settings, and the id that hashes it.

The same inputs and settings give the same id, so the same job; anything that would change a
document, a request or an answer gives another (PROTOCOL 1).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import orjson
from blake3 import blake3

from shardline.errors import JobNotReady
from shardline.job import JobFile
from shardline.layout import NO_PARTITION, JobLayout
from shardline.store import Store

_NAME_BYTES = 4
_JSON = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS  # YAML's logit_bias has integers as keys


class InputFile(msgspec.Struct, frozen=True):
    """One file of the corpus as it was when the job was planned."""

    uri: str
    source: str
    """Its path below the corpus: what rows and reports call it."""
    size_bytes: int
    version: str
    """ETag, or mtime in nanoseconds: a file that changes while it is read is an error."""


class SkippedFile(msgspec.Struct, frozen=True):
    """A file that was left out, and why (SkippedReason)."""

    source: str
    reason: str


class Replay(msgspec.Struct, frozen=True):
    """What makes a job a replay: which dead letters of which job it runs again (PROTOCOL 19)."""

    parent: str
    """The job that read the corpus; a replay after a replay has the same parent."""
    n: int
    base: str
    """The parent or its last published replay: whose table this one completes and replaces."""
    reasons: list[str]
    """Dead letters of these reasons are run."""
    changes: dict[str, Any]
    """Dotted fields of the job file with the values that they have here."""
    parent_planned_at: str
    opened_by: str
    """The run that opened it, where it has a name."""


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """`plan.json`: everything that the stages after it need to know."""

    job_id: str
    job: dict[str, object]
    """The checked job file, with every `file:` read in; see `Plan.job_file`."""
    partition: str | None
    planned_at: str
    model_commit: str
    inputs: list[InputFile]
    skipped: list[SkippedFile]
    splits: list[tuple[int, int]]
    """Ranges [first, last) of `inputs`: one scan task each, at most 1,000."""
    bounds: list[tuple[int, str]]
    """Upper bounds (length in bytes, first 8 hex digits of the fingerprint) of all buckets but the last."""
    bucket_sets: list[tuple[int, int]]
    """Ranges [first, last) of buckets: one cut task each, at most 1,000."""
    version: str
    replay: Replay | None = None
    worker_image: str | None = None
    """What the pods of a job on GPUs run; the newest start's."""

    @property
    def job_file(self) -> JobFile:
        return JobFile.model_validate(self.job)

    @property
    def whole_id(self) -> str:
        """The job whose documents are published: a replay's parent, else this one."""
        return self.replay.parent if self.replay else self.job_id

    @property
    def whole(self) -> JobLayout:
        """Where the corpus was read and all of it was cut; a replay has shards of its own beside it."""
        return JobLayout(self.whole_id)

    @property
    def layout(self) -> JobLayout:
        return JobLayout(self.job_id)

    @property
    def buckets(self) -> int:
        return len(self.bounds) + 1


def make_job_id(
    job: JobFile, partition: str | None, model_commit: str, inputs: list[InputFile]
) -> str:
    """`{name}-{partition or "all"}-{8 hex}` (PROTOCOL 1).

    Not hashed: shares and budgets, owner, schedule, engine_args, report, what is waited for.
    `max_text_bytes` is: it decides which rows are documents.
    """
    corpus = job.corpus.model_dump(mode="json", exclude={"wait_for", "wait_hours"})
    hashed = {
        "kind": job.kind,
        "partition": partition,  # the slug below may be the same for two of them
        "corpus": corpus | {"uri": job.corpus_uri(partition)},
        "max_text_bytes": job.limits.max_text_bytes,
        job.form.asks: job.model_dump(mode="json")[job.form.asks],
        "parameters": job.parameters,
        "output": job.output.model_dump(mode="json"),
        "shards": job.shards.model_dump(mode="json"),
        "model": [job.engine.engine, job.engine.model, model_commit, job.engine.chat_template],
        "rerun": job.rerun,
        "inputs": [[f.uri, f.size_bytes, f.version] for f in inputs],
    }
    digest = blake3(orjson.dumps(hashed, option=_JSON)).hexdigest(_NAME_BYTES)
    label = (partition or NO_PARTITION).lower()
    slug = "".join(c if c.isascii() and (c.isalnum() or c == "-") else "-" for c in label)
    return f"{job.name}-{slug}-{digest}"


def read_plan(store: Store, job_id: str) -> Plan:
    """The plan of a job.

    Raises:
        JobNotReady: there is no such job below this root.
    """
    found = store.read_or_none(JobLayout(job_id).plan)
    if found is None:
        raise JobNotReady(f"job {job_id}: not planned below {store.uri}")
    plan = msgspec.json.decode(found, type=Plan)
    settings = store.read_or_none(plan.layout.settings)
    return plan if settings is None else _with_settings(plan, orjson.loads(settings))


def keep_settings(store: Store, plan: Plan, job: JobFile, worker_image: str | None = None) -> Plan:
    """Let a later start of the same job bring another limit, owner, report, image or engine argument.

    The plan is put once, and these fields are not in its id: without this, a mistyped engine
    argument or a limit that was too tight would stay for ever. The last start wins.
    """
    given = _settings_of(job.model_dump(mode="json"), worker_image)
    if given == _settings_of(plan.job, plan.worker_image):
        return plan
    store.write(plan.layout.settings, orjson.dumps(given, option=orjson.OPT_INDENT_2))
    return _with_settings(plan, given)


_UNHASHED = ("owner", "limits", "schedule", "report")
_BLOCKS = ("local", "gpu")


def _settings_of(job: dict[str, Any], worker_image: str | None) -> dict[str, Any]:
    """The fields that `make_job_id` leaves out (limits.max_text_bytes is equal anyway)."""
    arguments = {block: job[block]["engine_args"] for block in _BLOCKS if job.get(block)}
    found = {name: job.get(name) for name in _UNHASHED}
    return found | {"engine_args": arguments, "worker_image": worker_image}


def _with_settings(plan: Plan, settings: dict[str, Any]) -> Plan:
    job: dict[str, Any] = plan.job | {name: settings[name] for name in _UNHASHED}
    for block, arguments in settings["engine_args"].items():
        if job.get(block):
            job[block] = job[block] | {"engine_args": arguments}
    image = settings.get("worker_image", plan.worker_image)
    return msgspec.structs.replace(plan, job=job, worker_image=image)


def encode_plan(plan: Plan) -> bytes:
    """The bytes of plan.json, readable for people."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=1)


def timestamp(moment: datetime) -> str:
    """How every record writes a moment: ISO 8601, UTC, to the millisecond."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")
