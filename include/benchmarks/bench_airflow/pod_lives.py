"""When pods started and ended, by Kubernetes' own clock, and how long a slot stood idle between two."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime


@dataclass
class PodLife:
    """What the cluster has said of one pod. Moments have whole seconds: Kubernetes keeps no more."""

    name: str
    shard: str = ""
    attempt: str = ""
    """Empty for a pod that is not ours."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    is_told_to_end: bool = False
    is_gone: bool = False

    @property
    def is_running(self) -> bool:
        return self.started_at is not None and self.ended_at is None and not self.is_gone


@dataclass(frozen=True)
class Turnaround:
    """A slot that was left and taken again."""

    left_at: datetime
    taken_at: datetime

    @property
    def idle_s(self) -> float:
        return (self.taken_at - self.left_at).total_seconds()


def turnarounds(lives: Iterable[PodLife], slots: int) -> list[Turnaround]:
    """The k-th pod that ends leaves its slot to the k-th that starts after the pool was full.

    Which pod gets which slot is not told by anyone, and does not matter for the sum.
    """
    lives = list(lives)
    starts = sorted(life.started_at for life in lives if life.started_at)[slots:]
    ends = sorted(life.ended_at for life in lives if life.ended_at)
    return [Turnaround(left, taken) for left, taken in zip(ends, starts, strict=False)]
