"""Fetch a model folder from s3:// into a folder, going on from what an earlier start has left.

A file has its name only when it is whole, checked and on disk; until then it is `NAME.part`, and the
next start goes on from its last byte.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shardline.disk import check_space, local_disk
from shardline.errors import StoreUnavailable
from shardline.store import Store, sync
from shardline.weights.checksum import Match, check_file
from shardline.weights.listing import WeightFile

log = logging.getLogger(__name__)

_PIECE_BYTES = 16 << 20
THREADS = 8  # one stream of an object store gives some 100 MB/s
_REPORT_S = 10.0
TRIES = 2


class Progress:
    """How much is here, told every ten seconds. `add` may be called from any thread."""

    def __init__(
        self, what: str, total_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.what, self.total_bytes, self._clock = what, total_bytes, clock
        self._here = self._fetched = 0
        self._started = self._told = clock()
        self._lock = threading.Lock()

    def keep(self, size_bytes: int) -> None:
        """Count bytes that an earlier start has fetched."""
        with self._lock:
            self._here += size_bytes

    def add(self, size_bytes: int) -> None:
        """Count bytes that came now."""
        with self._lock:
            self._here += size_bytes
            self._fetched += size_bytes
            if self._clock() - self._told >= _REPORT_S:
                self._told = self._clock()
                log.info("%s", self.line())

    def lose(self, size_bytes: int) -> None:
        """Count bytes that have to come again."""
        with self._lock:
            self._here -= size_bytes

    def line(self) -> str:
        elapsed = max(self._clock() - self._started, 1e-3)
        return (
            f"{self.what}: {self._here / 1e9:.2f} of {self.total_bytes / 1e9:.2f} GB, "
            f"{self._fetched / 1e6 / elapsed:.0f} MB/s"
        )


def fetch_files(store: Store, files: Sequence[WeightFile], folder: Path) -> None:
    """Have all files whole in `folder`, which is only ever filled from this very listing.

    Raises:
        StoreUnavailable: the store fails, or a file comes with wrong bytes twice.
        StoreRefused: no permission, or a file that is gone.
        SickMachine: the disk is full, or fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    here = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    check_space(folder, sum(f.size_bytes for f in files) - here)
    progress = Progress(f"weights {store.uri}", sum(f.size_bytes for f in files))
    # the smallest first: it tells whether this bucket's ETags are checksums at all
    smallest, *others = sorted(files, key=lambda f: f.size_bytes)
    has_checksums = _Fetch(store, folder, progress, True).probe(smallest)
    fetch = _Fetch(store, folder, progress, has_checksums)
    with ThreadPoolExecutor(THREADS, "weights") as threads:
        ends = [threads.submit(fetch.run, file) for file in reversed(others)]
        try:
            for end in ends:
                end.result()
        except BaseException:
            fetch.stop.set()
            threads.shutdown(cancel_futures=True)
            raise
    log.info("%s", progress.line())


def part_of(file: Path) -> Path:
    """The name of a file until it is whole and checked."""
    return file.with_name(f"{file.name}.part")


class _Fetch:
    """What the threads of one fetch share."""

    def __init__(self, store: Store, folder: Path, progress: Progress, has_checksums: bool) -> None:
        self.store, self.folder, self.progress = store, folder, progress
        self.has_checksums = has_checksums
        self.stop = threading.Event()

    def probe(self, file: WeightFile) -> bool:
        """Fetch a small file; False when two equal reads of it differ from its ETag."""
        target = self.folder / file.name
        if target.is_file():
            self.progress.keep(file.size_bytes)
            return check_file(target, file.e_tag) is not Match.OTHER
        for _ in range(TRIES):
            part = self._receive(file)
            is_same = check_file(part, file.e_tag) is not Match.OTHER
            if is_same or self.store.read(file.name) == part.read_bytes():
                if not is_same:
                    log.warning("weights %s: its ETags are no checksums (KMS?)", self.store.uri)
                self._name(part, file)
                return is_same
            self.progress.lose(file.size_bytes)  # what an earlier start has left was damaged
            part.unlink()
        raise StoreUnavailable(f"{file.name}: two reads of it gave different bytes")

    def run(self, file: WeightFile) -> None:
        if (self.folder / file.name).is_file():
            self.progress.keep(file.size_bytes)
            return
        for _ in range(TRIES):
            part = self._receive(file)
            if self._is_right(part, file):
                self._name(part, file)
                return
            log.warning("weights %s: other bytes than its ETag says, fetching it again", file.name)
            self.progress.lose(file.size_bytes)
            part.unlink()
        raise StoreUnavailable(f"{file.name}: came with other bytes than its ETag says, twice")

    def _receive(self, file: WeightFile) -> Path:
        """Bring `NAME.part` to its full length."""
        part = part_of(self.folder / file.name)
        part.parent.mkdir(parents=True, exist_ok=True)
        with local_disk(part), part.open("ab") as out:
            if out.tell() > file.size_bytes:
                out.truncate(0)
                out.seek(0)
            here = out.tell()
            self.progress.keep(here)
            while here < file.size_bytes:
                if self.stop.is_set():
                    raise StoreUnavailable(f"{file.name}: another file failed")
                end = min(here + _PIECE_BYTES, file.size_bytes)
                out.write(self.store.read_range(file.name, here, end))
                self.progress.add(end - here)
                here = end
        return part

    def _is_right(self, part: Path, file: WeightFile) -> bool:
        if part.stat().st_size != file.size_bytes:
            return False
        if not self.has_checksums:
            return True
        found = check_file(part, file.e_tag)
        if found is Match.UNKNOWN:
            log.warning("weights %s: its ETag is no checksum that is known here", file.name)
        return found is not Match.OTHER

    def _name(self, part: Path, file: WeightFile) -> None:
        sync(part)
        part.rename(self.folder / file.name)
        sync(part.parent)
