"""A disk of this machine: what goes wrong there says nothing about the job or its store."""

from __future__ import annotations

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
