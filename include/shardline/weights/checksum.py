"""Whether a fetched file has the bytes that its ETag, or its name in a hub's cache, stands for.

S3's ETag of an object that was put in one piece is its MD5; of one put in parts, the MD5 of the
parts' MD5s and their number. The size of the parts is not told: the ones that fit are tried. A bucket
with encryption keys of its own (SSE-KMS) has ETags that mean nothing: such a file is `UNKNOWN`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

_ETAG = re.compile(r"(?P<md5>[0-9a-f]{32})(?:-(?P<parts>[0-9]+))?")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MIB = 1 << 20
_READ_BYTES = 1 << 22
_TRIED_AT_MOST = 12
_USUAL_MIB = (8, 16, 5, 64, 100, 32, 10, 25, 50, 128, 256, 512)


class Match(Enum):
    """What an ETag says about a file."""

    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"


def check_file(file: Path, e_tag: str) -> Match:
    """Compare a file's bytes with its ETag."""
    parsed = _ETAG.fullmatch(e_tag)
    if parsed is None:
        return Match.UNKNOWN
    if parsed["parts"] is None:
        return Match.SAME if _md5(file).hex() == parsed["md5"] else Match.OTHER
    parts, size = int(parsed["parts"]), file.stat().st_size
    for part_bytes in part_sizes(size, parts):
        if _md5_of_parts(file, part_bytes).hex() == parsed["md5"]:
            return Match.SAME
    return Match.UNKNOWN  # an unusual size of parts, or the bytes are others: nobody can tell


def check_blob(file: Path) -> Match:
    """Compare a file of a hub's cache with its name there: a SHA-256, or a SHA-1 of small ones.

    The hub's own SHA-1 is git's; some mirrors give that of the bytes alone. A cache on a disk without
    links has no such names: its files are `UNKNOWN`.
    """
    real = file.resolve()
    if _SHA256.fullmatch(real.name):
        digests = [hashlib.sha256()]
    elif _SHA1.fullmatch(real.name):
        head = b"blob %d\0" % real.stat().st_size
        digests = [hashlib.sha1(start, usedforsecurity=False) for start in (head, b"")]
    else:
        return Match.UNKNOWN
    with real.open("rb") as f:
        while piece := f.read(_READ_BYTES):
            for digest in digests:
                digest.update(piece)
    return Match.SAME if real.name in {d.hexdigest() for d in digests} else Match.OTHER


def part_sizes(size_bytes: int, parts: int) -> Iterator[int]:
    """Whole MiB that cut a file into so many parts, the usual ones first."""
    fitting = [
        mib
        for mib in range(1, -(-size_bytes // _MIB) + 1)
        if -(-size_bytes // (mib * _MIB)) == parts
    ]
    usual = [mib for mib in _USUAL_MIB if mib in fitting]
    others = [mib for mib in fitting if mib not in usual]
    yield from (mib * _MIB for mib in [*usual, *others][:_TRIED_AT_MOST])


def _md5(file: Path) -> bytes:
    with file.open("rb") as f:
        return hashlib.file_digest(f, _new_md5).digest()


def _md5_of_parts(file: Path, part_bytes: int) -> bytes:
    whole, left = _new_md5(), 0
    part = _new_md5()
    with file.open("rb") as f:
        while piece := f.read(min(_READ_BYTES, part_bytes - left)):
            part.update(piece)
            left += len(piece)
            if left == part_bytes:
                whole.update(part.digest())
                part, left = _new_md5(), 0
    if left:
        whole.update(part.digest())
    return whole.digest()


def _new_md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)
