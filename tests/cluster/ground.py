"""The cluster as the tests know it: what the environment says of it, so that any cluster will do.

tests/cluster/run.sh exports all of it. For another cluster (kind, say) export KUBECONFIG and what of
the rest differs there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class Ground:
    kubeconfig: str
    image: str
    """An image with `sh`, which the nodes have or can pull."""
    host: str | None
    """The address of this process's machine at which pods reach what it serves."""
    worker_image: str | None
    worker_python: str
    """The interpreter in that image which has the worker's packages."""
    worker_mounts: tuple[str, ...]
    """Folders of the node that a worker gets, read-only and at their own paths."""


def read_ground() -> Ground:
    """Read the environment.

    Raises:
        RuntimeError: it names no cluster.
    """
    kubeconfig = os.environ.get("KUBECONFIG")
    if not kubeconfig:
        raise RuntimeError("KUBECONFIG names no cluster: these tests run by `make test-cluster`")
    mounts = os.environ.get("TEST_WORKER_MOUNTS", "")
    return Ground(
        kubeconfig=kubeconfig,
        image=os.environ.get("TEST_IMAGE", "busybox:1.36"),
        host=os.environ.get("TEST_HOST"),
        worker_image=os.environ.get("TEST_WORKER_IMAGE"),
        worker_python=os.environ.get("TEST_WORKER_PYTHON", "python3"),
        worker_mounts=_without_nested(filter(None, mounts.split(":"))),
    )


def _without_nested(folders: filter[str]) -> tuple[str, ...]:
    """Drop folders that lie in others: a mount below a mount finds no place to be put."""
    kept: list[str] = []
    for folder in sorted(set(folders)):
        if not any(folder.startswith(f"{other}/") for other in kept):
            kept.append(folder)
    return tuple(kept)
