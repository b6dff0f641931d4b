"""When a pod is over, and what its end means. Pure: facts in, a word of a closed list out.

What Kubernetes writes is stranger than its documentation, so the order of the rules matters:

* An exit code of ours says more than anything around it: a worker that drained has ended well.
* A container that is killed for its memory may end with 137, or with 70 when only its engine was.
* `Evicted` with the condition DisruptionTarget is the node in need; without it, the pod's own disk.
* A plain delete sets no condition, only `deletionTimestamp`.
* A pod that is taken away while its image is pulled ends like one that nobody knows of any more:
  137, ContainerStatusUnknown. Who took it away stands beside it.
* A pod on a node that is lost stays Running for ever: somebody must stop waiting for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from shardline.reasons import ExitCode, PodOutcome
from shardline.runners.gpu.facts import PodFacts
from shardline.runners.retry import ASKED_TO_STOP


class Stop(StrEnum):
    """Why nobody waits for a pod any longer."""

    ENDED = "ended"
    GONE = "gone"
    """There is no such pod any more."""
    LOST = "lost"
    """It should have ended long ago, or says nothing: its node is lost."""
    NO_IMAGE = "no_image"
    NO_ROOM = "no_room"
    WONT_START = "wont_start"
    CANCELLED = "cancelled"
    """The job was, and its worker does not run yet, which would find it out."""


@dataclass(frozen=True)
class Patience:
    """How long a pod may stay in a state; seconds."""

    schedule_s: float = 3_600
    """Waiting for a machine: spot GPUs are scarce."""
    image_s: float = 300
    """Failing to pull, from being given a machine on: a registry has hiccups."""
    start_s: float = 1_800
    """From being given a machine to the start of its container: the image has 10 GB."""
    deleted_s: float = 60
    """Still there after its grace period: the kubelet does not answer."""
    silent_s: float = 300
    """Its node reports nothing, and the worker wrote nothing to the store."""
    stale_s: float = 3_600
    """The worker wrote nothing to the store, whatever its node says: longer than an engine may take
    to start (SHARDLINE_ENGINE_START_S) and a store may be away (SHARDLINE_STORE_PATIENCE_S)."""
    api_s: float = 1_800
    """The API does not say how the pod is: then the task asks, whose tries are counted."""


_HOPELESS_IMAGE = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_FAILING_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})
_FAILING_START = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"}
)
_LOST_NODE = frozenset({"DeletionByTaintManager", "DeletionByPodGC"})
_OWN_WORD = {
    ExitCode.DONE: PodOutcome.DONE,
    ExitCode.CANCELLED: PodOutcome.CANCELLED,
    ExitCode.WRONG_INPUT: PodOutcome.WRONG_INPUT,
    ExitCode.STORE_UNREACHABLE: PodOutcome.STORE_UNREACHABLE,
    ExitCode.STORE_REFUSED: PodOutcome.STORE_REFUSED,
}


def look(
    facts: PodFacts | None, now: datetime, heard_at: datetime | None, patience: Patience
) -> Stop | None:
    """Whether to stop waiting for a pod, and why; None: look again later.

    Args:
        facts: None when there is no such pod.
        now: on the cluster's clock, or near it.
        heard_at: when the worker last wrote to the store; None when it has not yet.
    """
    if facts is None:
        return Stop.GONE
    if facts.has_ended:
        return Stop.ENDED
    if facts.deleted_at and facts.node is None:  # it never had a machine, and will not get one
        return Stop.GONE
    if _is_over(facts.deleted_at, now, patience.deleted_s):
        return Stop.LOST
    if facts.is_running:
        return _look_at_running(facts, now, heard_at, patience)
    return _look_at_pending(facts, now, patience)


def _look_at_running(
    facts: PodFacts, now: datetime, heard_at: datetime | None, patience: Patience
) -> Stop | None:
    last_word = max(moment for moment in (facts.started_at, heard_at) if moment is not None)
    is_silent = _is_over(facts.silent_since, now, patience.silent_s)
    limit = patience.silent_s if is_silent else patience.stale_s
    return Stop.LOST if _is_over(last_word, now, limit) else None


def _look_at_pending(facts: PodFacts, now: datetime, patience: Patience) -> Stop | None:
    if facts.deleted_at:  # it goes away by itself
        return None
    if facts.scheduled_at is None:
        since = facts.unschedulable_since or facts.created_at
        return Stop.NO_ROOM if _is_over(since, now, patience.schedule_s) else None
    if facts.waiting_reason in _HOPELESS_IMAGE:
        return Stop.NO_IMAGE
    if facts.waiting_reason in _FAILING_IMAGE and _is_over(
        facts.scheduled_at, now, patience.image_s
    ):
        return Stop.NO_IMAGE
    is_failing = facts.waiting_reason in _FAILING_START
    limit = patience.image_s if is_failing else patience.start_s
    return Stop.WONT_START if _is_over(facts.scheduled_at, now, limit) else None


def classify(facts: PodFacts | None, stop: Stop, recorded_code: int | None = None) -> PodOutcome:
    """How a pod ended.

    Args:
        facts: the last look at it; None when nobody ever saw it.
        stop: why nobody waits for it any longer.
        recorded_code: what the worker itself wrote into its attempt's record. A pod that is gone
            took its exit code with it.
    """
    if stop in _BEFORE_RUNNING:
        return _BEFORE_RUNNING[stop]
    if facts is not None and facts.has_ended:
        return _classify_ended(facts)
    if recorded_code is not None:
        return _of_code(recorded_code, PodOutcome.UNKNOWN)
    if stop is Stop.LOST:
        return PodOutcome.NODE_LOST
    return _taken_away(facts) or PodOutcome.DELETED if facts is not None else PodOutcome.DELETED


_BEFORE_RUNNING = {
    Stop.NO_IMAGE: PodOutcome.IMAGE_CANNOT_BE_PULLED,
    Stop.NO_ROOM: PodOutcome.UNSCHEDULABLE,
    Stop.WONT_START: PodOutcome.WONT_START,
    Stop.CANCELLED: PodOutcome.CANCELLED,
}


def classify_refusal(status: int, reason: str = "", is_over_quota: bool = False) -> PodOutcome:
    """What it means that the API did not make the pod.

    Args:
        status: of the HTTP answer; 0 when there was none.
        reason: of the Status object in it, a word of Kubernetes' own closed list.
        is_over_quota: whether a quota of the namespace is used up. Missing rights, a policy, a missing
            account or priority class and a full quota have the same answer, and only the last heals
            by itself.
    """
    if status == 403 and is_over_quota:
        return PodOutcome.OVER_QUOTA
    if status in (400, 405, 413, 415, 422) or reason == "Invalid":
        return PodOutcome.WRONG_MANIFEST
    if status in (401, 403, 404):
        return PodOutcome.REFUSED
    return PodOutcome.CONTROL_PLANE


def _classify_ended(facts: PodFacts) -> PodOutcome:
    code = facts.exit_code
    if code in _OWN_WORD:
        return _OWN_WORD[ExitCode(code)]
    if facts.pod_reason == "DeadlineExceeded":
        return PodOutcome.DEADLINE
    if code == ExitCode.DRAINED:
        return PodOutcome.DRAINED
    if facts.terminated_reason == "OOMKilled":
        return PodOutcome.OOM_KILLED
    if facts.terminated_reason in ("StartError", "ContainerCannotRun"):
        return PodOutcome.WONT_START
    if code == ExitCode.ENGINE_FAILED:
        return PodOutcome.ENGINE_FAILED
    if facts.phase == "Succeeded":
        return PodOutcome.DONE
    if taken := _taken_away(facts):
        return taken
    if facts.terminated_reason == "ContainerStatusUnknown":
        return PodOutcome.NODE_LOST
    if code is None and facts.started_at is None:
        return PodOutcome.NODE_REFUSED
    if code is None or code in ASKED_TO_STOP:  # its node is shutting down
        return PodOutcome.EVICTED
    return PodOutcome.UNKNOWN


def _taken_away(facts: PodFacts) -> PodOutcome | None:
    if facts.disruption in _LOST_NODE:
        return PodOutcome.NODE_LOST
    if facts.disruption is not None:
        return PodOutcome.EVICTED
    if facts.pod_reason == "Evicted":
        return PodOutcome.STORAGE_EXCEEDED
    return PodOutcome.DELETED if facts.deleted_at else None


def _of_code(code: int, other: PodOutcome) -> PodOutcome:
    if code == ExitCode.DRAINED:
        return PodOutcome.DRAINED
    if code == ExitCode.ENGINE_FAILED:
        return PodOutcome.ENGINE_FAILED
    return _OWN_WORD.get(ExitCode(code), other) if code in set(ExitCode) else other


def _is_over(since: datetime | None, now: datetime, limit_s: float) -> bool:
    return since is not None and now - since > timedelta(seconds=limit_s)
