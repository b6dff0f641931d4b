"""A disk of this machine: what goes wrong there says nothing about the job or its store."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardline.errors import SickMachine


@contextmanager
def local_disk(path: Path) -> Iterator[None]:
    """Name the disk when it fails; errors of a store have their own class and pass.

    Raises:
        SickMachine: full, read-only, not ours to write, broken.
    """
    try:
        yield
    except OSError as error:
        raise SickMachine(f"{error.filename or path}: {error.strerror or error}") from error


def check_space(folder: Path, missing_bytes: int) -> None:
    """Find a disk that is too small for a model before its first byte comes; the folder may be missing.

    Raises:
        SickMachine: so many bytes are not free there.
    """
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(nearest).free
    if missing_bytes > free:
        raise SickMachine(
            f"{folder}: the model needs {missing_bytes / 1e9:.1f} GB more, and {free / 1e9:.1f} GB are "
            "free on this disk"
        )


def make_scratch(attempt: str) -> tempfile.TemporaryDirectory[str]:
    """A folder for what an attempt needs while it runs: its shard's file, its log.

    Raises:
        OSError: the disk is full, or may not be written.
    """
    return tempfile.TemporaryDirectory(prefix=_scratch_prefix(attempt))


def remove_scratch(attempt: str) -> None:
    """Remove what a killed attempt has left there: up to 200 MB. Its process is to be gone."""
    for left in Path(tempfile.gettempdir()).glob(f"{_scratch_prefix(attempt)}*"):
        shutil.rmtree(left, ignore_errors=True)


def _scratch_prefix(attempt: str) -> str:
    return f"shardline-worker-{attempt}-"
