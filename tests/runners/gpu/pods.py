"""Pods as the Kubernetes API shows them, as far as their end is read from them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from shardline.runners.gpu.facts import PodFacts, read_facts

START = datetime(2026, 11, 28, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def written(seconds: float) -> str:
    return at(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def make_pod(
    phase: str = "Running",
    *,
    state: dict[str, Any] | None = None,
    reason: str | None = None,
    deleted: float | None = None,
    **conditions: tuple[str, str | None, float],
) -> dict[str, Any]:
    """A pod made at START; a condition is (status, reason, second of its last transition)."""
    statuses = [{"name": "base", "state": state}] if state else None
    return {
        "metadata": {
            "name": "pod-1",
            "uid": "uid-1",
            "creationTimestamp": written(0),
            "deletionTimestamp": None if deleted is None else written(deleted),
        },
        "spec": {"nodeName": "node-1"},
        "status": {
            "phase": phase,
            "reason": reason,
            "containerStatuses": statuses,
            "conditions": [
                {"type": kind, "status": status, "reason": why, "lastTransitionTime": written(when)}
                for kind, (status, why, when) in conditions.items()
            ],
        },
    }


def ended(code: int, why: str = "Error", **fields: Any) -> PodFacts:
    state = {"terminated": {"exitCode": code, "reason": why, "startedAt": written(5)}}
    return read_facts(make_pod("Succeeded" if code == 0 else "Failed", state=state, **fields))


def running(started: float = 5, **fields: Any) -> PodFacts:
    state = {"running": {"startedAt": written(started)}}
    return read_facts(make_pod("Running", state=state, **fields))


def pending(waiting: str | None = None, **fields: Any) -> PodFacts:
    state = {"waiting": {"reason": waiting}} if waiting else None
    return read_facts(make_pod("Pending", state=state, **fields))
