"""What one pod is sent for, and the names and labels by which it is found again."""

from __future__ import annotations

from dataclasses import dataclass

from blake3 import blake3

FINALIZER = "shardline/keep"
"""An evicted pod is gone within a second of its exit code; with this it stays until it was read."""
JOB = "shardline/job"
SHARD = "shardline/shard"
ATTEMPT = "shardline/attempt"
GENERATION = "shardline/generation"
_LABEL = 63


@dataclass(frozen=True)
class Errand:
    """What one pod is sent for. `owner` makes its name its own: the same task, the same name."""

    root: str
    job_id: str
    image: str
    shard: str
    generation: int
    attempt: str
    number: int
    """How many attempts of this generation came before."""
    owner: str

    @property
    def pod_name(self) -> str:
        """The same for two who send the same pod at once: the second finds the first's."""
        whose = blake3(f"{self.root}\0{self.job_id}\0{self.owner}".encode()).hexdigest(5)
        return f"{self.shard}-g{self.generation}-a{self.number}-{whose}"


def labels_of(errand: Errand) -> dict[str, str]:
    """By which a pod is found again."""
    return {
        "app.kubernetes.io/name": "shardline-worker",
        JOB: label_value(errand.job_id),
        SHARD: errand.shard,
        GENERATION: str(errand.generation),
        ATTEMPT: errand.attempt,
    }


def label_value(text: str) -> str:
    """A label's value for any text: itself where it fits, else its start and a hash."""
    if len(text) <= _LABEL:
        return text
    return f"{text[: _LABEL - 11]}-{blake3(text.encode()).hexdigest(5)}"
