"""A store on disk that fails at one chosen write: before it, or after it with the reply lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from obstore.store import LocalStore

from shardline.store import Store

T = TypeVar("T")


class ScriptedStore(Store):
    """Fails at the `fail_at`-th write (from 0); with `after`, what was written stays written."""

    def __init__(self, folder: Path, fail_at: int | None = None, *, after: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder.as_uri(), LocalStore(folder), folder)
        self.fail_at, self.after = fail_at, after
        self.written: list[str] = []
        self.before_create: Callable[[str], None] | None = None
        """Called with the path of each create: where another writer slips in."""

    def _do_create(self, path: str, content: bytes | Path) -> bool:
        if self.before_create is not None:
            self.before_create(path)
        return self._scripted(path, lambda: Store._do_create(self, path, content))

    def _do_write(self, path: str, content: bytes | Path) -> None:
        self._scripted(path, lambda: Store._do_write(self, path, content))

    def _scripted(self, path: str, write: Callable[[], T]) -> T:
        is_now = len(self.written) == self.fail_at
        self.written.append(path)
        if is_now and not self.after:
            raise ConnectionResetError("scripted: before the write")
        done = write()
        if is_now:
            raise ConnectionResetError("scripted: the reply was lost")
        return done


def snapshot(folder: Path, *, without: tuple[str, ...] = ()) -> dict[str, bytes]:
    """All files below a folder by name, but those with one of the given parts in their path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part in path.parts for part in without)
    }
