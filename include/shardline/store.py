"""The object store: one door for local disk, S3 and memory.

A create-only put is the only way in which Shardline decides who won, so this file keeps two
promises that the library below does not: a local object is on disk (file and folder fsynced) before
its name exists, and a put whose reply was lost is recognised as our own by its bytes (PROTOCOL 8, 23).
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore import exceptions as obstore_errors
from obstore.store import LocalStore, MemoryStore, S3Store

from shardline.disk import local_disk
from shardline.errors import (
    ObjectConflict,
    ObjectNotFound,
    StoreRefused,
    StoreUnavailable,
    first_line,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore, S3Credential

    S3Keys = Callable[[], S3Credential]

_RETRY: dict[str, Any] = {
    "max_retries": 5,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {
        "init_backoff": timedelta(milliseconds=200),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}
_REFUSED = (
    obstore_errors.PermissionDeniedError,
    obstore_errors.UnauthenticatedError,
    obstore_errors.InvalidPathError,
    obstore_errors.NotSupportedError,
    obstore_errors.UnknownConfigurationKeyError,
    PermissionError,
    NotADirectoryError,
    IsADirectoryError,
)
_NO_BUCKET = "<Code>NoSuchBucket</Code>"  # S3's own code: the library has no class for it
_SAYS_NO = re.compile(
    r"non-2xx status code: 40[13]\b|redirect without LOCATION"
    r"|<Code>(AuthorizationHeaderMalformed|ExpiredToken|InvalidToken)</Code>"
)
"""What has no class in the library: a refused listing, a region that is another, keys that have ended.

https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html#ErrorCodeList
"""


@dataclass(frozen=True)
class ObjectInfo:
    """One object of a listing. `path` is relative to the store's root."""

    path: str
    size_bytes: int
    e_tag: str | None
    modified: datetime


class Put(Enum):
    """What became of a create-only put."""

    CREATED = "created"
    SAME = "same"  # exists with equal bytes: most likely our own put whose reply was lost
    TAKEN = "taken"  # exists with other bytes: somebody else won


class Store:
    """Objects below one root URI. Every method may raise StoreUnavailable or StoreRefused.

    Tests script faults by overriding the methods whose names begin with `_do_`: everything above
    them is the code that runs in production.
    """

    def __init__(self, uri: str, objects: ObjectStore, folder: Path | None = None) -> None:
        self.uri = uri.rstrip("/")
        self.folder = folder
        self._objects = objects

    # one-line primitives, the seam for scripted faults
    def _do_create(self, path: str, content: bytes | Path) -> bool:
        """Create-only put; False when the name is taken."""
        if self.folder is not None:
            return _write_file(self.folder / path, content, create=True)
        try:
            obstore.put(self._objects, path, content, mode="create", use_multipart=False)
        except obstore_errors.AlreadyExistsError:
            return False
        return True

    def _do_write(self, path: str, content: bytes | Path) -> None:
        if self.folder is not None:
            _write_file(self.folder / path, content, create=False)
        else:
            obstore.put(self._objects, path, content)

    def _do_read(self, path: str) -> bytes:
        return bytes(obstore.get(self._objects, path).bytes())

    def _do_read_range(self, path: str, start: int, end: int) -> bytes:
        return bytes(obstore.get_range(self._objects, path, start=start, end=end))

    def _do_head(self, path: str) -> ObjectInfo:
        return _info(obstore.head(self._objects, path))

    def _do_list(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        for batch in obstore.list(self._objects, prefix=prefix or None, offset=start_after):
            yield from map(_info, batch)

    def _do_folders(self, prefix: str) -> tuple[str, ...]:
        found = obstore.list_with_delimiter(self._objects, prefix=prefix or None)
        return tuple(str(name) for name in found["common_prefixes"])

    def _do_delete(self, path: str) -> None:
        obstore.delete(self._objects, path)

    # what the rooms use
    def put_once(self, path: str, content: bytes | Path) -> Put:
        """Create-only put: one winner, for ever. Tells a lost reply from a lost race."""
        with _translated(path):
            if self._do_create(path, content):
                return Put.CREATED
            mine = content.read_bytes() if isinstance(content, Path) else content
            if self._do_head(path).size_bytes != len(mine):
                return Put.TAKEN
            return Put.SAME if self._do_read(path) == mine else Put.TAKEN

    def put_same(self, path: str, content: bytes | Path) -> None:
        """Create-only put of content that every writer makes alike.

        Raises:
            ObjectConflict: it exists with other bytes, so something is not reproducible.
        """
        if self.put_once(path, content) is Put.TAKEN:
            raise ObjectConflict(path)

    def write(self, path: str, content: bytes | Path) -> None:
        """Put that replaces what is there; for objects with one writer."""
        with _translated(path):
            self._do_write(path, content)

    def read(self, path: str) -> bytes:
        """The whole object. Raises ObjectNotFound."""
        with _translated(path):
            return self._do_read(path)

    def read_or_none(self, path: str) -> bytes | None:
        """The whole object, or None where there is none."""
        try:
            return self.read(path)
        except ObjectNotFound:
            return None

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Bytes start..end (end excluded)."""
        if start == end:
            return b""
        with _translated(path):
            return self._do_read_range(path, start, end)

    def info(self, path: str) -> ObjectInfo | None:
        """Size and tag, or None where there is no such object."""
        try:
            with _translated(path):
                return self._do_head(path)
        except ObjectNotFound:
            return None

    def exists(self, path: str) -> bool:
        return self.info(path) is not None

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Objects below a prefix that ends at a slash (or is empty), sorted by name."""
        with _translated(prefix or self.uri):
            yield from sorted(self._do_list(prefix.rstrip("/"), start_after), key=lambda o: o.path)

    def folders(self, prefix: str) -> tuple[str, ...]:
        """Names of the folders directly below a prefix that ends at a slash, sorted.

        For finding jobs: unlike `list`, it does not walk through all that lies in them.
        """
        with _translated(prefix):
            found = self._do_folders(prefix.rstrip("/"))
            return tuple(sorted(name.rstrip("/").rsplit("/", 1)[-1] for name in found))

    def delete(self, path: str) -> None:
        """Remove an object; no error where there is none."""
        try:
            with _translated(path):
                self._do_delete(path)
        except ObjectNotFound:
            return

    def fetch(self, path: str, folder: Path) -> Path:
        """The object as a local file: itself on local disk, else a copy in `folder`.

        Raises:
            SickMachine: there is no room for the copy.
        """
        if self.folder is not None:
            target = self.folder / path
            if not target.is_file():
                raise ObjectNotFound(path)
            return target
        target = folder / path.replace("/", "~")
        with local_disk(target), target.open("wb") as file:
            for piece in self._stream(path):
                file.write(piece)
        return target

    def _stream(self, path: str) -> Iterator[Any]:
        with _translated(path):
            yield from obstore.get(self._objects, path).stream()

    def uri_of(self, path: str) -> str:
        """The full URI of an object, for people and for libraries that open URIs."""
        return f"{self.uri}/{path}"

    @property
    def delta_options(self) -> dict[str, str]:
        """What delta-rs needs beside the URI: create-only commits on S3, and keys that are renewed."""
        if not self.uri.startswith("s3://"):
            return {}
        options = {"aws_conditional_put": "etag"} | (_delta_keys(_s3_keys()) if _s3_keys else {})
        return options | ({"aws_allow_http": "true"} if _is_plain_http() else {})


_s3_keys: S3Keys | None = None


def use_s3_keys(keys: S3Keys | None) -> None:
    """Let the stores of this process that are opened from now on ask `keys` for their credentials.

    For keys that are renewed while a process runs; without it, the environment has them (AWS_*).
    """
    global _s3_keys
    _s3_keys = keys


def _is_plain_http() -> bool:
    return os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")


def _delta_keys(keys: S3Credential) -> dict[str, str]:
    found = {
        "aws_access_key_id": keys["access_key_id"],
        "aws_secret_access_key": keys["secret_access_key"],
        "aws_session_token": keys.get("token"),
    }
    return {name: value for name, value in found.items() if value}


def open_store(uri: str) -> Store:
    """Open `file:///folder`, `/folder`, `s3://bucket/prefix` or `memory://`.

    Credentials, region and endpoint of S3 come from the environment (AWS_*), or from the machine's or
    pod's own identity; see also use_s3_keys.

    Raises:
        StoreRefused: the URI names no store we know, a folder that cannot be made, or a client that
            cannot work here.
    """
    if uri.startswith("memory://"):
        return Store(uri, MemoryStore())
    if uri.startswith("s3://"):
        parts = urlsplit(uri)
        try:
            store = S3Store(
                parts.netloc,
                prefix=parts.path.strip("/") or None,
                credential_provider=_s3_keys,
                retry_config=_RETRY,  # type: ignore[arg-type]
                client_options={
                    "connect_timeout": timedelta(seconds=5),
                    "timeout": timedelta(seconds=120),
                    # given options hide AWS_ALLOW_HTTP: an endpoint that says http:// means it
                    "allow_http": _is_plain_http(),
                },
            )
        except obstore_errors.BaseError as error:  # e.g. an image without CA certificates
            raise StoreRefused(f"{uri}: {first_line(error)}") from error
        return Store(uri, store)
    folder = folder_of(uri)
    if folder is None:
        raise StoreRefused(f"{uri}: a root is a folder, file:///folder or s3://bucket/prefix")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreRefused(f"{uri}: cannot make this folder ({error.strerror})") from error
    if not os.access(folder, os.W_OK):
        raise StoreRefused(f"{uri}: this folder cannot be written")
    return Store(folder.as_uri(), LocalStore(folder), folder)


def folder_of(uri: str) -> Path | None:
    """The local folder or file that a URI or path means, made absolute; None for other schemes."""
    if uri.startswith("file://"):
        return Path(unquote(uri.removeprefix("file://")))
    if "://" in uri:
        return None
    return Path(uri).absolute()


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["e_tag"], meta["last_modified"])


def _write_file(target: Path, content: bytes | Path, *, create: bool) -> bool:
    """Write through a temporary file, fsync it, give it its name in one step, fsync the folder.

    The name appears only when the bytes are on disk: after a power cut an object is whole or absent.
    """
    _make_folder(target.parent)
    # LocalStore hides names that end in #digits from listings, so a torn file is never an object
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(6)}#1")
    try:
        with temporary.open("wb") as file:
            if isinstance(content, Path):
                with content.open("rb") as source:
                    shutil.copyfileobj(source, file, 1 << 20)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if create:
            os.link(temporary, target)
        else:
            temporary.replace(target)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    sync(target.parent)
    return True


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, each on disk: a file is lost with the folder it lies in."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)


def sync(path: Path) -> None:
    """Have a file's bytes, or a folder's names, on disk before anything else is done."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translated(path: str) -> Iterator[None]:
    """Turn what the library raises into errors whose class decides what happens next."""
    try:
        yield
    except (obstore_errors.BaseError, OSError) as error:
        raise _meaning(path, error) from error


def _meaning(path: str, error: obstore_errors.BaseError | OSError) -> Exception:
    said = first_line(error)
    if _NO_BUCKET in str(error):
        return StoreRefused(f"{path}: there is no such bucket")
    if isinstance(error, FileNotFoundError):
        return ObjectNotFound(path)
    refuses = isinstance(error, obstore_errors.BaseError) and _SAYS_NO.search(str(error))
    if refuses or isinstance(error, _REFUSED):
        return StoreRefused(f"{path}: {said}")
    return StoreUnavailable(f"{path}: {said}")  # as do a full disk, an I/O error, a stale handle
