"""What earlier attempts on a shard teach the next pod: which nodes to avoid, how much to run at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shardline.reasons import ExitCode, PodOutcome
from shardline.rows import Attempt

MAX_AVOIDED = 5
"""Nodes: more would leave a small cluster no choice, and the list is in every pod."""
DEFAULT_SLOTS = 256


@dataclass(frozen=True)
class Lessons:
    """What the next pod does otherwise than the job file says."""

    avoid_nodes: tuple[str, ...] = ()
    max_num_seqs: int | None = None
    """An upper bound, after a pod was killed for its memory."""


def learn(attempts: Iterable[Attempt], slots: int = DEFAULT_SLOTS) -> Lessons:
    """Fold a shard's records, oldest first.

    Args:
        slots: the job's own max_num_seqs, for a worker that was killed before it said its own.
    """
    nodes: dict[str, None] = {}
    bound: int | None = None
    for attempt in attempts:
        if attempt.node and _looks_sick(attempt):
            nodes.pop(attempt.node, None)
            nodes[attempt.node] = None
        if attempt.pod_outcome is PodOutcome.OOM_KILLED:
            had = bound or attempt.metrics.max_num_seqs or slots
            bound = max(1, min(had, slots) // 2)
    return Lessons(tuple(nodes)[-MAX_AVOIDED:], bound)


def _looks_sick(attempt: Attempt) -> bool:
    if attempt.pod_outcome is not None:
        return attempt.pod_outcome.is_sick_node
    return attempt.exit_code == ExitCode.ENGINE_FAILED
