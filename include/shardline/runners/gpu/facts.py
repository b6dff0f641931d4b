"""What a pod's object says of it, in the few words that its end is judged by.

A pod comes as the API's own JSON (camelCase), whichever client fetched it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

CONTAINER = "base"


@dataclass(frozen=True)
class PodFacts:
    """One look at a pod. Moments are the cluster's clock, as far as it tells them."""

    name: str
    uid: str
    phase: str
    created_at: datetime | None = None
    node: str | None = None
    pod_reason: str = ""
    """`status.reason`: Evicted, DeadlineExceeded, ..."""
    waiting_reason: str = ""
    """Why the container does not run yet: ErrImagePull, ..."""
    terminated_reason: str = ""
    """Why it ended, as the kubelet says: Error, OOMKilled, StartError, ..."""
    exit_code: int | None = None
    started_at: datetime | None = None
    """When the container began to run; None before."""
    disruption: str | None = None
    """The reason of the condition DisruptionTarget."""
    unschedulable_since: datetime | None = None
    scheduled_at: datetime | None = None
    silent_since: datetime | None = None
    """The condition Ready is not true although the container runs: its node does not report."""
    deleted_at: datetime | None = None
    """`deletionTimestamp`: when it was asked to go, plus the grace period it was given."""

    @property
    def has_ended(self) -> bool:
        """Its container has ended, or will never run."""
        return self.exit_code is not None or self.phase in ("Succeeded", "Failed")

    @property
    def is_running(self) -> bool:
        return self.started_at is not None and not self.has_ended


def read_facts(pod: Mapping[str, Any]) -> PodFacts:
    """The facts of one pod object."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    states = _states(status.get("containerStatuses") or ())
    terminated, running = states.get("terminated") or {}, states.get("running") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    return PodFacts(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        phase=status.get("phase", "Pending"),
        created_at=_moment(metadata.get("creationTimestamp")),
        node=(pod.get("spec") or {}).get("nodeName"),
        pod_reason=status.get("reason") or "",
        waiting_reason=(states.get("waiting") or {}).get("reason") or "",
        terminated_reason=terminated.get("reason") or "",
        exit_code=terminated.get("exitCode"),
        started_at=_moment(running.get("startedAt") or terminated.get("startedAt")),
        disruption=_true(conditions.get("DisruptionTarget")),
        unschedulable_since=_since(scheduled, "False"),
        scheduled_at=_since(scheduled, "True"),
        silent_since=_silent_since(conditions.get("Ready", {})) if running else None,
        deleted_at=_moment(metadata.get("deletionTimestamp")),
    )


def _states(statuses: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    for status in statuses:
        if status["name"] == CONTAINER:
            return status.get("state") or {}
    return {}


def _true(condition: Mapping[str, Any] | None) -> str | None:
    if condition is None or condition.get("status") != "True":
        return None
    return condition.get("reason") or "?"


def _since(condition: Mapping[str, Any], status: str) -> datetime | None:
    if condition.get("status") != status:
        return None
    return _moment(condition.get("lastTransitionTime"))


def _silent_since(ready: Mapping[str, Any]) -> datetime | None:
    return _moment(ready.get("lastTransitionTime")) if ready.get("status") == "False" else None


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None
