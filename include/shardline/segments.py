"""Which line of a shard's segments counts, and how `results` is built from them.

A request may end twice: in two attempts, or in a segment that a lost worker still wrote. A result
beats an error; among equals the smallest segment name wins (PROTOCOL 8). The worker and settle
both build `results` here, so they build the same bytes from the same segments.

Memory holds one small record per request, never the lines: those stay in files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

import msgspec

from shardline.disk import local_disk
from shardline.errors import LawBroken
from shardline.layout import JobLayout, shard_of
from shardline.store import Put, Store

_MAX_OPEN = 200


class SegmentName(NamedTuple):
    """`{attempt}-{n:06d}`: the n-th segment of an attempt. Ordered as PROTOCOL 8 asks."""

    attempt: str
    n: int

    def __str__(self) -> str:
        return f"{self.attempt}-{self.n:06d}"

    @classmethod
    def parse(cls, path: str) -> Self:
        """The name in an object's path.

        Raises:
            LawBroken: an object that no worker of ours writes lies among the segments.
        """
        attempt, dash, n = path.rsplit("/", 1)[-1].removesuffix(".jsonl").rpartition("-")
        if not (attempt and dash and n.isascii() and n.isdecimal()):
            raise LawBroken(f"{path}: expected a segment named {{attempt}}-{{number}}.jsonl")
        return cls(attempt, int(n))


class _Error(msgspec.Struct):
    code: str


class _Head(msgspec.Struct):
    custom_id: str
    error: _Error | None = None


class _Id(msgspec.Struct):
    custom_id: str


_HEAD = msgspec.json.Decoder(_Head)
_ID = msgspec.json.Decoder(_Id)


class Line(NamedTuple):
    """Where the line stands that counts for a request. `reason` is None for a result."""

    segment: SegmentName
    start: int
    size: int
    reason: str | None

    @property
    def is_dead(self) -> bool:
        return self.reason is not None

    def beats(self, other: Line) -> bool:
        """PROTOCOL 8: a result beats an error, then the smallest segment name, then the first."""
        mine = (self.is_dead, self.segment, self.start)
        return mine < (other.is_dead, other.segment, other.start)


def read_lines(name: SegmentName, lines: Iterable[bytes]) -> Iterator[tuple[str, Line]]:
    """The custom_id and place of each line; only the id and the error's code are decoded.

    Raises:
        LawBroken: a line that is no result line.
    """
    start = 0
    for number, line in enumerate(lines):
        try:
            head = _HEAD.decode(line)
        except msgspec.MsgspecError as error:
            raise LawBroken(f"segment {name} line {number}: no result line ({error})") from error
        yield head.custom_id, Line(name, start, len(line), head.error.code if head.error else None)
        start += len(line)


def resolve(
    found: Iterable[tuple[str, Line]], into: dict[str, Line] | None = None
) -> dict[str, Line]:
    """The line that counts for each request, whatever the order in which they come."""
    best = {} if into is None else into
    for custom_id, line in found:
        if custom_id not in best or line.beats(best[custom_id]):
            best[custom_id] = line
    return best


def request_ids(shard_file: Path) -> Iterator[str]:
    """The custom_ids of a shard file, in its order."""
    with shard_file.open("rb") as file:
        for line in file:
            yield _ID.decode(line).custom_id


class Segments:
    """The segments of one shard as they were when last listed.

    On local disk they are read where they lie; from elsewhere each is copied to `folder` once.
    """

    def __init__(self, store: Store, layout: JobLayout, shard: str, folder: Path) -> None:
        self._store, self._layout, self._shard, self._folder = store, layout, shard, folder
        self.files: dict[SegmentName, Path] = {}
        self.lines: dict[str, Line] = {}

    def refresh(self) -> bool:
        """List again and read what is new; whether anything was."""
        listed = self._store.list(self._layout.segments(self._shard))
        names = [SegmentName.parse(found.path) for found in listed]
        new = sorted(name for name in names if name not in self.files)
        for name in new:
            path = self._layout.segment(self._shard, name.attempt, name.n)
            self.files[name] = self._store.fetch(path, self._folder)
            with self.files[name].open("rb") as file:
                resolve(read_lines(name, file), self.lines)
        return bool(new)

    def write(
        self, order: Iterable[str], target: Path, missing: Callable[[str], bytes] | None = None
    ) -> None:
        """Write `results`: one line per request in the shard's order.

        `missing` makes the line of a request that no segment holds.

        Raises:
            LawBroken: a request without a line and no `missing`, or a line that nobody asked for.
        """
        lines = dict(self.lines)
        with target.open("wb") as out, _OpenFiles(self.files) as files:
            for custom_id in order:
                line = lines.pop(custom_id, None)
                if line is not None:
                    out.write(files.read(line).rstrip(b"\n"))
                elif missing is not None:
                    out.write(missing(custom_id))
                else:
                    raise LawBroken(f"shard {self._shard}: no segment holds {custom_id}")
                out.write(b"\n")
        if lines:
            raise LawBroken(
                f"shard {self._shard}: {len(lines)} segment lines for requests it does not have, "
                f"first {min(lines)}"
            )


class _OpenFiles:
    """Segments open for reading; a long shard has more of them than a process may open."""

    def __init__(self, paths: Mapping[SegmentName, Path]) -> None:
        self._paths = paths
        self._open: dict[SegmentName, BinaryIO] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()

    def read(self, line: Line) -> bytes:
        if line.segment not in self._open:
            if len(self._open) >= _MAX_OPEN:
                self._open.pop(next(iter(self._open))).close()
            self._open[line.segment] = self._paths[line.segment].open("rb")
        file = self._open[line.segment]
        file.seek(line.start)
        return file.read(line.size)


def commit_results(
    store: Store,
    layout: JobLayout,
    shard: str,
    missing: Callable[[str], bytes] | None = None,
    segments: Segments | None = None,
    ids: Sequence[str] | None = None,
) -> Put:
    """Build `results` from the segments and put it: the only commit of a shard (PROTOCOL 7, 8).

    `segments` that were read before, and a shard whose custom_ids are known, are not read again. Whatever the answer, the shard is done afterwards: TAKEN means that the winner's is to be read.

    Raises:
        LawBroken: see `Segments.write`.
        SickMachine: there is no room for a copy on this machine.
    """
    here = Path(tempfile.gettempdir())
    with local_disk(here), tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
        folder = Path(scratch)
        ids = ids or list(request_ids(store.fetch(layout.shard(shard), folder)))
        segments = segments or Segments(store, layout, shard, folder)
        segments.refresh()
        target = folder / "results"
        while True:
            segments.write(ids, target, missing)
            # a late worker may have committed rows while we wrote: they are worth another round
            if not segments.refresh():
                return store.put_once(layout.results(shard), target)


def done_shards(store: Store, layout: JobLayout) -> set[str]:
    """Shards whose results exist: nothing else says that a shard is done."""
    return {shard_of(found.path) for found in store.list(layout.results_prefix)}


def reasons_of(lines: Mapping[str, Line]) -> dict[str, int]:
    """How many requests ended as dead letters so far, by reason."""
    counts: dict[str, int] = {}
    for line in lines.values():
        if line.reason is not None:
            counts[line.reason] = counts.get(line.reason, 0) + 1
    return dict(sorted(counts.items()))
