"""Every closed list: why a row is no document, why a request has no result, how a worker ends.

Each member carries a sentence for people; dead-letter reasons also say whether a replay can help.
A new reason is added here and where it is found, nowhere else.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class _Explained(StrEnum):
    """A string enum whose members carry one sentence for people."""

    sentence: str

    def __new__(cls, value: str, sentence: str) -> _Explained:
        member = str.__new__(cls, value)
        member._value_ = value
        member.sentence = sentence
        return member


class RejectedReason(_Explained):
    """Why a row is no document. The first that applies, from the top."""

    INVALID_UTF8 = "invalid_utf8", "The line, record or cell is not valid UTF-8."
    TOO_DEEP = "too_deep", "Arrays and objects nest too deep."
    BAD_JSON = "bad_json", "The line is not exactly one JSON value by RFC 8259."
    BAD_CSV = "bad_csv", "The quoting of the record breaks RFC 4180."
    NOT_AN_OBJECT = "not_an_object", "The line is a JSON value, but no object."
    COLUMN_COUNT = "column_count", "The CSV record has more or fewer fields than the header."
    LONE_SURROGATE = "lone_surrogate", "The line escapes half of a surrogate pair."
    DUPLICATE_KEY = "duplicate_key", "A key that the job reads occurs twice in the object."
    NO_TEXT = "no_text", "A column that the request needs is missing or null."
    TEXT_NOT_STRING = (
        "text_not_string",
        "A column that the request needs is neither string nor integer.",
    )
    EMPTY_TEXT = "empty_text", "All columns that the request needs are blank."
    TEXT_TOO_LONG = (
        "text_too_long",
        "The columns that the request needs exceed limits.max_text_bytes.",
    )
    NO_ID = "no_id", "The id is missing or null."
    BAD_ID = "bad_id", "The id is neither an integer nor a string with something in it."
    ID_CONFLICT = "id_conflict", "An earlier row has this id and another text."
    REQUEST_TOO_LONG = "request_too_long", "The request alone exceeds shards.max_bytes."


class FileReason(_Explained):
    """Why a whole file cannot be used. The job fails and names it."""

    BAD_NAME = "bad_name", "The path has a control character."
    UNKNOWN_FORMAT = "unknown_format", "The name ends in nothing that is read."
    WRONG_FORMAT = "wrong_format", "Content and name differ."
    NOT_UTF8 = "not_utf8", "The file starts with a byte order mark of UTF-16 or UTF-32."
    TRUNCATED = "truncated", "The file ends before its end."
    CORRUPT = (
        "corrupt",
        "A checksum does not agree, or foreign bytes follow the last member or frame.",
    )
    MISSING_COLUMN = "missing_column", "The header or schema lacks a column that the job reads."
    DUPLICATE_COLUMN = (
        "duplicate_column",
        "The header or schema has a column twice that the job reads.",
    )
    COLUMN_TYPE = "column_type", "A column that the job reads has a type it cannot use."
    CHANGED = "changed", "The file changed after the job was planned."
    VANISHED = "vanished", "The file was there when the job was planned and is gone."


class SkippedReason(_Explained):
    """Why a file is left out without an error; the report names it."""

    HIDDEN = "hidden", "A part of the path begins with a dot or an underscore."
    FOLDER_MARKER = "folder_marker", "An empty object that stands for a folder of S3."


class DeadLetterReason(_Explained):
    """Why a request has no result. It is the `error.code` of its line in results."""

    TOO_LONG = "too_long", "The prompt exceeds the model's context length."
    EMPTY_PROMPT = "empty_prompt", "The prompt has no token."
    BAD_PARAMETER = "bad_parameter", "A sampling parameter is out of range or unknown."
    BAD_SCHEMA = "bad_schema", "The engine cannot compile the output schema."
    UNSUPPORTED_CONTENT = "unsupported_content", "The model cannot read this kind of content."
    INVALID_OUTPUT = (
        "invalid_output",
        "The answer breaks the choices or the schema of the job file.",
    )
    TRUNCATED = (
        "truncated",
        "The answer was cut at max_tokens, and the job file refuses such answers.",
    )
    ENGINE_ERROR = "engine_error", "The engine ended this request with an error."
    ENGINE_KILLER = "engine_killer", "The request ends the engine, alone and twice."
    STALLED = "stalled", "The engine hangs on the request, alone and twice."
    SHARD_DEAD = "shard_dead", "The shard used its attempts up before this request was done."
    NOT_RUN = "not_run", "The shard was never started: the job stopped before it."

    @property
    def can_replay(self) -> bool:
        """Whether running the same request again may give a result."""
        return self in _REPLAYABLE

    @property
    def lies_in_job(self) -> bool:
        """Whether the job file is to blame, so that every other request will end the same way."""
        return self in (DeadLetterReason.BAD_PARAMETER, DeadLetterReason.BAD_SCHEMA)


_REPLAYABLE = frozenset(
    {
        DeadLetterReason.ENGINE_ERROR,
        DeadLetterReason.ENGINE_KILLER,
        DeadLetterReason.STALLED,
        DeadLetterReason.SHARD_DEAD,
        DeadLetterReason.NOT_RUN,
        DeadLetterReason.INVALID_OUTPUT,
        DeadLetterReason.TRUNCATED,
    }
)


def can_replay(reason: str) -> bool:
    """Whether a dead letter of this reason may do better when the same request runs again."""
    return any(member.value == reason for member in _REPLAYABLE)


class ExitCode(IntEnum):
    """How a worker process ends (PROTOCOL 12). Numbers follow BSD's sysexits.h where one fits."""

    DONE = 0
    WRONG_INPUT = 65
    STORE_UNREACHABLE = 69
    ENGINE_FAILED = 70
    DRAINED = 75
    CANCELLED = 76
    STORE_REFUSED = 77

    @property
    def is_permanent(self) -> bool:
        """Whether another attempt would end in the same way."""
        return self is ExitCode.WRONG_INPUT

    @property
    def attempt_end(self) -> AttemptEnd:
        """The same in an attempt's record."""
        return AttemptEnd[self.name]


class CommandExit(IntEnum):
    """How the `shardline` command ends."""

    PUBLISHED = 0
    JOB_FAILED = 1
    WRONG_INPUT = 2


class AttemptEnd(_Explained):
    """How an attempt ended, by its own word. An attempt without one was interrupted."""

    DONE = "done", "Every request of the shard has an end, and the results are committed."
    DRAINED = "drained", "It was told to stop, and committed what was finished."
    WRONG_INPUT = "wrong_input", "The shard or the job cannot be run as it is."
    STORE_UNREACHABLE = "store_unreachable", "The store did not answer for ten minutes."
    STORE_REFUSED = "store_refused", "The store refused the worker's keys, or has no such bucket."
    ENGINE_FAILED = "engine_failed", "The engine would not start, or the machine looks sick."
    CANCELLED = "cancelled", "The job was cancelled."


class Charge(StrEnum):
    """What the end of a pod without progress costs its shard (PROTOCOL 11)."""

    NOTHING = "nothing"
    """The shard is done, or the job was cancelled: there is no next attempt."""
    FREE = "free"
    """It says nothing about the shard: tried again, under a high ceiling."""
    BRIEF = "brief"
    """It says nothing about the shard either, but only a person can mend it: a low ceiling."""
    CHARGED = "charged"
    """Three of these, and the shard is dead."""
    PERMANENT = "permanent"
    """Another attempt would end in the same way: the shard is dead at once."""


class PodOutcome(_Explained):
    """How a pod ended, by what Kubernetes says of it. Every end is one of these."""

    DONE = "done", "The worker committed the shard's results."
    DRAINED = "drained", "The worker was told to stop, and committed what was finished."
    EVICTED = "evicted", "The cluster took the machine away: evicted, preempted or shut down."
    DELETED = "deleted", "Somebody deleted the pod, or it was gone before its end was seen."
    NODE_LOST = "node_lost", "Nobody hears from the machine, or it was removed with the pod on it."
    NODE_REFUSED = "node_refused", "The machine had no room after all, or no healthy GPU."
    STORE_UNREACHABLE = "store_unreachable", "The worker could not reach the object store."
    STORE_REFUSED = "store_refused", "The store refused the worker's keys, or has no such bucket."
    CONTROL_PLANE = "control_plane", "The Kubernetes API did not answer, or asked to come later."
    OVER_QUOTA = "over_quota", "The quota of the namespace is used up."
    OOM_KILLED = "oom_killed", "The pod used more memory than it may."
    STORAGE_EXCEEDED = "storage_exceeded", "The pod used more local disk than it may."
    DEADLINE = "deadline", "The pod ran longer than it may."
    ENGINE_FAILED = "engine_failed", "The engine would not start, or the machine looks sick."
    WONT_START = "wont_start", "The node took the pod and could not start its container."
    IMAGE_CANNOT_BE_PULLED = "image_cannot_be_pulled", "The worker's image cannot be pulled."
    UNSCHEDULABLE = "unschedulable", "No machine had room for the pod in the time it may wait."
    REFUSED = (
        "refused",
        "The cluster makes no such pod for us: rights, a policy, or a name that it does not know.",
    )
    UNKNOWN = "unknown", "The worker ended in a way that has no meaning here: it crashed."
    WRONG_INPUT = "wrong_input", "The shard or the job cannot be run as it is."
    WRONG_MANIFEST = "wrong_manifest", "Kubernetes says that the pod's description is wrong."
    CANCELLED = "cancelled", "The job was cancelled."

    @property
    def charge(self) -> Charge:
        """What it costs the shard when the attempt brought nothing."""
        return _CHARGES.get(self, Charge.CHARGED)

    @property
    def is_sick_node(self) -> bool:
        """Whether the machine may be to blame, so that the next pod goes elsewhere."""
        return self in _SICK_NODE


_SICK_NODE = (
    PodOutcome.ENGINE_FAILED,
    PodOutcome.WONT_START,
    PodOutcome.NODE_LOST,
    PodOutcome.NODE_REFUSED,
)
_CHARGES = {
    PodOutcome.DONE: Charge.NOTHING,
    PodOutcome.CANCELLED: Charge.NOTHING,
    PodOutcome.WRONG_INPUT: Charge.PERMANENT,
    PodOutcome.WRONG_MANIFEST: Charge.PERMANENT,
    PodOutcome.DRAINED: Charge.FREE,
    PodOutcome.EVICTED: Charge.FREE,
    PodOutcome.DELETED: Charge.FREE,
    PodOutcome.NODE_LOST: Charge.FREE,
    PodOutcome.NODE_REFUSED: Charge.FREE,
    PodOutcome.STORE_UNREACHABLE: Charge.FREE,
    PodOutcome.STORE_REFUSED: Charge.BRIEF,
    PodOutcome.CONTROL_PLANE: Charge.FREE,
    PodOutcome.OVER_QUOTA: Charge.FREE,
}


class ShardState(StrEnum):
    """Where a shard is. Derived from objects, stored nowhere."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    DEAD = "dead"
