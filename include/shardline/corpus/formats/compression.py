"""The bytes of a packed file in bounded steps, and the certainty that its end was the end.

A file that was cut must never look like a shorter one (knowledge: most readers return the first
rows of a cut zstd file and say nothing). Several gzip members or zstd frames are one file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import BinaryIO

from shardline.corpus.raw import CHUNK_BYTES, UnreadableFile
from shardline.reasons import FileReason

_READ_BYTES = 1 << 18
_ZLIB_GZIP = 31  # 15 bits of window, gzip's header and trailer
_MAGIC = {"gz": b"\x1f\x8b", "zst": b"\x28\xb5\x2f\xfd", "parquet": b"PAR1"}
_SKIPPABLE = tuple(bytes([n]) + b"\x2a\x4d\x18" for n in range(0x50, 0x60))
_MARK = b"\xef\xbb\xbf"
_WIDE = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


def packing_of(start: bytes) -> str:
    """gz, zst or parquet by the first four bytes; "" for anything else."""
    if start.startswith(_SKIPPABLE):
        return "zst"
    return next((kind for kind, magic in _MAGIC.items() if start.startswith(magic)), "")


def check_packing(start: bytes, packing: str) -> None:
    """Whether a file that begins with `start` is what its name says.

    Raises:
        UnreadableFile: wrong_format, or truncated where a packed file ends within its magic bytes.
    """
    if packing and len(start) < 4 and _MAGIC[packing].startswith(start[:4]):
        # every gzip reader takes zero bytes for a file without rows
        raise UnreadableFile(FileReason.TRUNCATED, f"{len(start)} bytes")
    if (found := packing_of(start)) != packing:
        raise UnreadableFile(
            FileReason.WRONG_FORMAT, f"named as {packing or 'text'}, holds {found or 'other bytes'}"
        )


def text_chunks(stream: BinaryIO, packing: str) -> Iterator[bytes]:
    """The unpacked bytes of a text file, without its UTF-8 mark.

    Raises:
        UnreadableFile: wrong_format, not_utf8, truncated or corrupt; rows read before do not count.
    """
    start = stream.read(4)
    check_packing(start, packing)
    stream.seek(0)
    chunks = _UNPACK[packing](stream)
    first = b""
    while len(first) < 4 and (chunk := next(chunks, b"")):
        first += chunk
    check_packing(first[:4], "")
    if first.startswith(_WIDE):
        raise UnreadableFile(FileReason.NOT_UTF8)
    yield first.removeprefix(_MARK)
    yield from chunks


def _plain(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def _gunzip(stream: BinaryIO) -> Iterator[bytes]:
    member = None
    try:
        while packed := stream.read(_READ_BYTES):
            while packed:
                member = member or zlib.decompressobj(_ZLIB_GZIP)
                yield member.decompress(packed, CHUNK_BYTES)
                packed = member.unused_data if member.eof else member.unconsumed_tail
                member = None if member.eof else member
        while member and not member.eof:
            rest = member.decompress(b"", CHUNK_BYTES)
            if not rest and not member.eof:
                raise UnreadableFile(FileReason.TRUNCATED, "a gzip member has no end")
            yield rest
    except zlib.error as error:
        raise UnreadableFile(FileReason.CORRUPT, str(error)) from error


def _unzstd(stream: BinaryIO) -> Iterator[bytes]:
    from backports import zstd

    try:
        with zstd.open(stream, "rb") as frames:
            while chunk := frames.read(CHUNK_BYTES):
                yield chunk
    except EOFError as error:
        raise UnreadableFile(FileReason.TRUNCATED, "a zstd frame has no end") from error
    except zstd.ZstdError as error:
        raise UnreadableFile(FileReason.CORRUPT, str(error)) from error


_UNPACK = {"": _plain, "gz": _gunzip, "zst": _unzstd}
