"""Which files the corpus is: a file, a folder with all below it, or a glob, on disk or on S3.

Names are names: nothing in a name is decoded, and a path that exists is that path whatever
characters it has. Every file found is an input, skipped with a reason, or a problem with a reason.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shardline.corpus.formats import format_of
from shardline.corpus.sources import (
    bucket_store,
    split_s3,
    version_of_local,
    version_of_object,
)
from shardline.errors import CorpusError, FileProblem, NotAllowed, StoreRefused
from shardline.plan import InputFile, SkippedFile
from shardline.reasons import FileReason, SkippedReason
from shardline.store import folder_of

_WILD = re.compile(r"[*?]")


@dataclass(frozen=True)
class Found:
    """A file of a listing, before its name was judged. Without a version it cannot be opened."""

    uri: str
    source: str
    size_bytes: int
    version: str | None
    is_named: bool = False
    """Whether the user named this very file, so that a leading dot hides nothing."""


@dataclass(frozen=True)
class Listing:
    """The corpus: what is read, in order; what is left out; what cannot be used."""

    inputs: list[InputFile]
    skipped: list[SkippedFile]
    problems: list[FileProblem]


def list_corpus(uri: str, prefixes: Sequence[str] = ()) -> Listing:
    """List and judge the files of a corpus.

    Raises:
        CorpusError: there is nothing of this name, or no data file in it.
        NotAllowed: it lies outside `prefixes` (empty: anywhere), or a link leads out of them.
    """
    if uri.startswith("s3://"):
        check_s3_allowed(uri, prefixes)
        found = list(_find_objects(uri))
    elif (path := folder_of(uri)) is not None and path.is_absolute():
        check_local_allowed(uri, fixed_part(path.as_posix()), prefixes)
        found = [f for f in _find_files(uri, path) if _check_link(f, prefixes)]
    else:
        raise CorpusError(f"corpus {uri}: expected a path, file:///path or s3://bucket/key")
    listing = judge(found)
    if not (listing.inputs or listing.problems):
        skipped = f" ({len(listing.skipped)} skipped)" if listing.skipped else ""
        raise CorpusError(f"corpus {uri}: there is no data file{skipped}")
    return listing


def judge(found: Iterable[Found]) -> Listing:
    """Sort files into inputs, skipped and problems, each in the byte order of its source."""
    listing = Listing([], [], [])
    for file in sorted(found, key=lambda f: f.source.encode("utf-8", "surrogateescape")):
        reason = _reason(file)
        if reason is None:
            assert file.version is not None
            listing.inputs.append(InputFile(file.uri, file.source, file.size_bytes, file.version))
        elif isinstance(reason, SkippedReason):
            listing.skipped.append(SkippedFile(file.source, reason))
        else:
            listing.problems.append(FileProblem(file.source, reason))
    return listing


def _reason(file: Found) -> FileReason | SkippedReason | None:
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in file.source):
        return FileReason.BAD_NAME
    if not file.is_named and any(part.startswith((".", "_")) for part in file.source.split("/")):
        return SkippedReason.HIDDEN
    if file.version is None:
        return FileReason.VANISHED
    if format_of(file.source) is None:
        is_marker = file.uri.startswith("s3://") and file.size_bytes == 0
        return SkippedReason.FOLDER_MARKER if is_marker else FileReason.UNKNOWN_FORMAT
    return None


def fixed_part(path: str) -> str:
    """The folders of a glob before its first part with a wildcard; without one, all of it."""
    parts = path.split("/")
    wild = next((n for n, part in enumerate(parts) if _WILD.search(part)), len(parts))
    return "/".join(parts[:wild])


@dataclass(frozen=True)
class Glob:
    """`*` and `?` stay within a part of the path, `**` is any number of parts; the rest is literal."""

    parts: tuple[str, ...]

    def matches(self, source: str) -> bool:
        return _match(self.parts, tuple(source.split("/")))

    def may_hold(self, folder: str) -> bool:
        """Whether a file that matches may lie below this folder."""
        for pattern, name in zip(self.parts, folder.split("/"), strict=False):
            if pattern == "**":
                return True
            if not _match_part(pattern, name):
                return False
        return folder.count("/") + 1 < len(self.parts)

    def of_folders(self) -> Glob:
        """All files below what matches."""
        return Glob((*self.parts, "**"))


def _match(patterns: tuple[str, ...], names: tuple[str, ...]) -> bool:
    if not patterns:
        return not names
    if patterns[0] == "**":
        rest = patterns[1:] or ("*",)
        return any(_match(rest, names[n:]) for n in range(len(names)))
    return bool(names) and _match_part(patterns[0], names[0]) and _match(patterns[1:], names[1:])


def _match_part(pattern: str, name: str) -> bool:
    pieces = re.split(r"([*?])", pattern)
    wild = {"*": ".*", "?": "."}
    return re.fullmatch("".join(wild.get(p, re.escape(p)) for p in pieces), name, re.S) is not None


def _find_files(uri: str, path: Path) -> Iterator[Found]:
    try:
        if path.is_file():
            yield replace(_file(path, path.name), is_named=True)
        elif path.is_dir():
            yield from _below(path)
        elif _WILD.search(path.as_posix()):
            yield from _matching(path)
        else:
            raise CorpusError(f"corpus {uri}: no such file or folder")
    except OSError as error:
        raise StoreRefused(f"corpus {error.filename or uri}: {error.strerror or error}") from error


def _matching(path: Path) -> list[Found]:
    base = fixed_part(path.as_posix())
    if not Path(base or "/").is_dir():
        raise CorpusError(f"corpus {path}: no such folder as {base}")
    glob = Glob(tuple(path.as_posix()[len(base) :].strip("/").split("/")))
    for wanted in (glob, glob.of_folders()):
        found = (f for f in _below(Path(base or "/"), wanted.may_hold) if wanted.matches(f.source))
        if matching := list(found):
            return matching
    raise CorpusError(f"corpus {path}: no file matches")


def _below(folder: Path, may_hold: Callable[[str], bool] = lambda _: True) -> Iterator[Found]:
    return _walk(folder, "", frozenset(), may_hold)


def _walk(
    folder: Path, prefix: str, above: frozenset[tuple[int, int]], may_hold: Callable[[str], bool]
) -> Iterator[Found]:
    """Every file below a folder. Links are followed; one that leads back up holds nothing new."""
    found = folder.stat()
    here = (found.st_dev, found.st_ino)
    if here in above:
        return
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            source = prefix + entry.name
            if entry.is_dir():
                if may_hold(source):
                    yield from _walk(folder / entry.name, source + "/", above | {here}, may_hold)
            else:
                yield _file(folder / entry.name, source)


def _file(path: Path, source: str) -> Found:
    """A file with its version; what is none, or a link to nothing, has no version."""
    uri = "file://" + path.as_posix() if _is_odd(path) else path.as_uri()
    if not path.is_file():
        return Found(uri, source, 0, None)
    size, version = version_of_local(path)
    return Found(uri, source, size, version)


def _is_odd(path: Path) -> bool:
    """Whether its bytes are no UTF-8: it has no URI, and becomes a problem by its name."""
    return any(unicodedata.category(c) == "Cs" for c in path.as_posix())


def _find_objects(uri: str) -> Iterator[Found]:
    bucket, key = split_s3(uri)
    if not bucket:
        raise CorpusError(f"corpus {uri}: expected s3://bucket/key")
    key = key.strip("/")
    store = bucket_store(bucket)
    if key and (info := store.info(key)) is not None:
        name = key.rsplit("/", 1)[-1]
        yield Found(f"s3://{bucket}/{key}", name, *version_of_object(info), is_named=True)
        return
    below = list(_objects_below(bucket, key))
    if not below and _WILD.search(key):
        below = _matching_objects(bucket, key)
    if not below:
        raise CorpusError(f"corpus {uri}: no such object, and none below it")
    yield from below


def _matching_objects(bucket: str, key: str) -> list[Found]:
    base = fixed_part(key)
    glob = Glob(tuple(key[len(base) :].strip("/").split("/")))
    listed = list(_objects_below(bucket, base))
    matching = [f for f in listed if glob.matches(f.source)]
    return matching or [f for f in listed if glob.of_folders().matches(f.source)]


def _objects_below(bucket: str, base: str) -> Iterator[Found]:
    prefix = f"{base}/" if base else ""
    for info in bucket_store(bucket).list(prefix):
        yield Found(
            f"s3://{bucket}/{info.path}", info.path.removeprefix(prefix), *version_of_object(info)
        )


def check_s3_allowed(uri: str, prefixes: Sequence[str]) -> None:
    """Raises NotAllowed for what lies outside `prefixes` (empty: anywhere)."""
    parts = uri.removeprefix("s3://").rstrip("/").split("/")
    allowed = [p.removeprefix("s3://").rstrip("/").split("/") for p in prefixes if "s3://" in p]
    if ".." in parts or "." in parts:
        raise NotAllowed(f"corpus {uri}: a key with . or .. in it")
    if prefixes and not any(parts[: len(a)] == a for a in allowed):
        raise NotAllowed(f"corpus {uri}: outside of what is allowed ({', '.join(prefixes)})")


def check_local_allowed(uri: str, fixed: str, prefixes: Sequence[str]) -> None:
    """The same for a path; `fixed` is its part without a wildcard."""
    if prefixes and not _is_allowed(Path(fixed or "/"), prefixes):
        raise NotAllowed(f"corpus {uri}: outside of what is allowed ({', '.join(prefixes)})")


def _check_link(file: Found, prefixes: Sequence[str]) -> bool:
    path = folder_of(file.uri)
    if prefixes and path is not None and not _is_allowed(path, prefixes):
        raise NotAllowed(f"corpus {file.source}: a link out of what is allowed")
    return True


def _is_allowed(path: Path, prefixes: Sequence[str]) -> bool:
    """Compare real paths, so that neither `..` nor a link escapes."""
    folders = [folder_of(prefix) for prefix in prefixes]
    real = path.resolve()
    return any(folder is not None and real.is_relative_to(folder.resolve()) for folder in folders)
