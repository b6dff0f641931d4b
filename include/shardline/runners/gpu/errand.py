"""What one pod is sent for, and the names and labels by which it is found again."""

from __future__ import annotations

from dataclasses import dataclass

from blake3 import blake3

FINALIZER = "shardline/keep"
"""An evicted pod is gone within a second of its exit code; with this it stays until it was read."""
STORE = "shardline/store"
"""Two Airflows may share a namespace, and their jobs may have the same ids."""
JOB = "shardline/job"
SHARD = "shardline/shard"
ATTEMPT = "shardline/attempt"
GENERATION = "shardline/generation"
_LABEL = 63


@dataclass(frozen=True)
class Errand:
    """What one pod is sent for."""

    root: str
    job_id: str
    image: str
    shard: str
    generation: int
    attempt: str
    number: int
    """How many attempts of this generation came before."""

    @property
    def pod_name(self) -> str:
        """The same for two who send the same pod at once: the second finds the first's."""
        whose = blake3(f"{self.root}\0{self.job_id}".encode()).hexdigest(5)
        return f"{self.shard}-g{self.generation}-a{self.number}-{whose}"


def labels_of(errand: Errand) -> dict[str, str]:
    """By which a pod is found again."""
    return {
        "app.kubernetes.io/name": "shardline-worker",
        **work_labels(errand.root, errand.job_id, errand.shard, errand.generation),
        ATTEMPT: errand.attempt,
    }


def work_labels(root: str, job_id: str, shard: str, generation: int) -> dict[str, str]:
    """What the pods of one shard have in common, and no other pod has.

    Airflow's own labels are not that: a cleared wave maps over what is left, so that the same map
    index is another shard.
    """
    return {
        **store_labels(root),
        JOB: label_value(job_id),
        SHARD: shard,
        GENERATION: str(generation),
    }


def store_labels(root: str) -> dict[str, str]:
    """What the pods of one deployment have in common."""
    return {STORE: blake3(root.rstrip("/").encode()).hexdigest(8)}


def label_value(text: str) -> str:
    """A label's value for any text: itself where it fits, else its start and a hash."""
    if len(text) <= _LABEL:
        return text
    return f"{text[: _LABEL - 11]}-{blake3(text.encode()).hexdigest(5)}"
