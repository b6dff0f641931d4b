"""Bytes sorted into buckets on a local disk, then kept as one stream in pieces that fit in memory.

A scan appends to thousands of buckets in any order and stores few objects: the stream is ordered by
bucket, `offsets` say where each begins, and a reader fetches its bucket by range. Equal input gives
equal pieces, so a retried scan writes the same bytes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import IO

from shardline.store import Store

PIECE_BYTES = 64 << 20
BUFFER_BYTES = 64 << 20


class BucketWriter:
    """Append to buckets; beyond `buffer_bytes` the buckets go to a temporary file, not to RAM."""

    def __init__(self, buckets: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._buffers: list[bytearray | None] = [None] * buckets
        self._chunks: list[list[tuple[int, int]]] = [[] for _ in range(buckets)]
        self._held = 0
        self._limit = buffer_bytes
        self._file: IO[bytes] | None = None

    def add(self, bucket: int, content: bytes) -> None:
        buffer = self._buffers[bucket]
        if buffer is None:
            buffer = self._buffers[bucket] = bytearray()
        buffer += content
        self._held += len(content)
        if self._held > self._limit:
            self._flush()

    def _flush(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        for bucket, buffer in enumerate(self._buffers):
            if buffer:
                self._chunks[bucket].append((self._file.tell(), len(buffer)))
                self._file.write(buffer)
                self._buffers[bucket] = None
        self._held = 0

    def _bucket(self, bucket: int) -> Iterator[bytes]:
        for start, size in self._chunks[bucket]:
            assert self._file is not None
            self._file.seek(start)
            yield self._file.read(size)
        if buffer := self._buffers[bucket]:
            yield bytes(buffer)

    def put(self, store: Store, name: Callable[[int], str]) -> list[int]:
        """Put the stream as pieces named `name(0)`, `name(1)`, ...; return the offset of each
        bucket and, last, the size of the whole stream."""
        out = PieceWriter(store, name)
        offsets = [0]
        for bucket in range(len(self._buffers)):
            for chunk in self._bucket(bucket):
                out.write(chunk)
            offsets.append(out.size)
        out.close()
        return offsets

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class PieceWriter:
    """A stream of bytes put as pieces of PIECE_BYTES; an empty stream has no piece."""

    def __init__(self, store: Store, name: Callable[[int], str]) -> None:
        self._store = store
        self._name = name
        self._held = bytearray()
        self._pieces = 0
        self.size = 0

    def write(self, content: bytes) -> None:
        self._held += content
        self.size += len(content)
        while len(self._held) >= PIECE_BYTES:
            self._put(PIECE_BYTES)

    def _put(self, size: int) -> None:
        self._store.put_same(self._name(self._pieces), bytes(memoryview(self._held)[:size]))
        del self._held[:size]
        self._pieces += 1

    def close(self) -> None:
        if self._held:
            self._put(len(self._held))


def read_stream(store: Store, name: Callable[[int], str], start: int, end: int) -> bytes:
    """Bytes start..end (end excluded) of a stream that PieceWriter put."""
    parts = []
    while start < end:
        piece, at = divmod(start, PIECE_BYTES)
        size = min(end - start, PIECE_BYTES - at)
        parts.append(store.read_range(name(piece), at, at + size))
        start += size
    return b"".join(parts)
