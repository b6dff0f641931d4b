"""A file of the corpus as a stream, certain to be the file that was planned.

Its version is compared before the first byte and after the last, so that rows of two versions
never mix: a file that changed or vanished is an error of that file (PROTOCOL 1).
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from shardline.corpus.raw import UnreadableFile
from shardline.errors import ObjectNotFound, StoreRefused, StoreUnavailable
from shardline.plan import InputFile
from shardline.reasons import FileReason
from shardline.store import ObjectInfo, Store, folder_of, open_store

_S3 = "s3://"
_BLOCK_BYTES = 4 << 20


@contextmanager
def opened(file: InputFile, block_bytes: int = _BLOCK_BYTES) -> Iterator[BinaryIO]:
    """The bytes of a planned file; may be read to the end or in part, and seeks.

    An object is fetched in blocks of `block_bytes`.

    Raises:
        UnreadableFile: changed or vanished, at the start or at the end.
        StoreRefused: no permission. StoreUnavailable: the disk or the store fails.
    """
    _check_version(file)
    try:
        with _stream(file, block_bytes) as stream:
            yield stream
    except UnreadableFile:
        _check_version(file)  # a file that changed under the reader looks corrupt
        raise
    _check_version(file)


def version_of_local(path: Path) -> tuple[int, str]:
    """Size and version (mtime in nanoseconds) of a local file. Raises OSError."""
    found = path.stat()
    return found.st_size, str(found.st_mtime_ns)


def version_of_object(info: ObjectInfo) -> tuple[int, str]:
    """Size and version (ETag) of an object."""
    return info.size_bytes, info.e_tag or info.modified.isoformat()


def split_s3(uri: str) -> tuple[str, str]:
    """Bucket and key of an s3:// URI; a key is a name, nothing in it is decoded."""
    bucket, _, key = uri.removeprefix(_S3).partition("/")
    return bucket, key


@lru_cache(maxsize=16)
def bucket_store(bucket: str) -> Store:
    """The store of a whole bucket: keys are paths in it."""
    return open_store(f"{_S3}{bucket}")


def _check_version(file: InputFile) -> None:
    found = _version_now(file)
    if found is None:
        raise UnreadableFile(FileReason.VANISHED)
    if found != (file.size_bytes, file.version):
        raise UnreadableFile(FileReason.CHANGED)


def _version_now(file: InputFile) -> tuple[int, str] | None:
    if file.uri.startswith(_S3):
        bucket, key = split_s3(file.uri)
        info = bucket_store(bucket).info(key)
        return version_of_object(info) if info else None
    try:
        return version_of_local(_local(file))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _translated(file, error) from error


def _local(file: InputFile) -> Path:
    path = folder_of(file.uri)
    assert path is not None, file.uri
    return path


@contextmanager
def _stream(file: InputFile, block_bytes: int) -> Iterator[BinaryIO]:
    if file.uri.startswith(_S3):
        bucket, key = split_s3(file.uri)
        raw = _ObjectStream(bucket_store(bucket), key, file.size_bytes)
        yield io.BufferedReader(raw, block_bytes)
        return
    try:
        stream = _local(file).open("rb")
    except FileNotFoundError as error:
        raise UnreadableFile(FileReason.VANISHED) from error
    except OSError as error:
        raise _translated(file, error) from error
    with stream:
        yield stream


def _translated(file: InputFile, error: OSError) -> StoreRefused | StoreUnavailable:
    text = f"{file.uri}: {error.strerror or error}"
    return StoreRefused(text) if isinstance(error, PermissionError) else StoreUnavailable(text)


class _ObjectStream(io.RawIOBase):
    """An object read by ranges: nothing of it is kept, so its size does not matter."""

    def __init__(self, store: Store, key: str, size: int) -> None:
        self._store, self._key, self._size, self._at = store, key, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        end = min(self._size, self._at + len(buffer))
        if end <= self._at:
            return 0
        try:
            content = self._store.read_range(self._key, self._at, end)
        except ObjectNotFound as error:
            raise UnreadableFile(FileReason.VANISHED) from error
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)
