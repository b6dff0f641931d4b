"""The folder of models on a machine: each fetched once, whatever starts there at the same time.

How it works: a model's folder appears under its name in one step, when all of it is there. Whoever
needs one that is not there takes a lock on a file beside it; the others wait for it, and find the
folder when they get it. The kernel gives the lock back when its holder dies, and the next one goes
on from the holder's last byte.

What it does not do: remove models. A disk that fills up is for the person who chose it.

Known limitation: the lock is the kernel's, so the folder lies on a disk of the machine. On a network
disk that takes no such locks the fetch is refused.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from shardline.disk import local_disk
from shardline.errors import ModelNotFound, SickMachine, StoreUnavailable
from shardline.hub import cached_hub_folder, hub_folder
from shardline.job_blocks import EngineBlock
from shardline.store import folder_of, open_store, sync
from shardline.weights.checksum import Match, check_blob
from shardline.weights.fetch import THREADS, TRIES, fetch_files, part_of
from shardline.weights.listing import WeightFile, hash_listing, list_weights

log = logging.getLogger(__name__)

_RECORD = ".shardline-weights.json"
_LOOK_S = 0.5


class CacheSettings(BaseSettings):
    """Where a machine keeps its models."""

    model_config = SettingsConfigDict(env_prefix="SHARDLINE_", frozen=True)

    model_cache: Path = Field(
        default=Path("~/.cache/shardline/models"),
        description="The folder of models on a disk of this machine; it needs room for all of them.",
    )
    cache_patience_s: float = Field(
        default=0,
        ge=0,
        description="How long to wait for the right to write that folder: on a new node of a cluster "
        "somebody else makes it, and gives it to this user.",
    )
    cached_models: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Comma-separated models that `python -m shardline.weights` fetches where it is "
        "told none: hub ids, with @revision or without, and s3:// folders.",
    )

    @field_validator("cached_models", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(name for name in value.replace(",", " ").split() if name)


def disk_folder(block: EngineBlock) -> Path | None:
    """The folder on disk that a model is; None where it is one of the hub or of s3://."""
    return folder_of(block.model) if block.model.startswith(("/", "file://")) else None


def local_model_folder(block: EngineBlock, commit: str, cache: Path | None = None) -> Path:
    """The model as a folder that an engine can open, fetched first unless it is there.

    `commit` is the plan's. `cache` is SHARDLINE_MODEL_CACHE where it is not given; models of the hub
    lie where HF_HOME says, if it says anything. Blocks for as long as the fetch takes; any number of
    processes may ask at once.

    Raises:
        ModelNotFound: not there, not allowed, or not what was planned.
        StoreRefused: no permission for the bucket.
        StoreUnavailable: the store or the hub fails.
        SickMachine: the cache's disk is full, or may not be written.
    """
    if (folder := disk_folder(block)) is not None:
        return folder
    cache = (cache or CacheSettings().model_cache).expanduser()
    with local_disk(cache):
        if block.model.startswith("s3://"):
            return fill(block.model, commit, cache)
        if os.environ.keys() & {"HF_HOME", "HF_HUB_CACHE"}:  # then others look there too
            return _from_hub(block.model, commit, None)
        _make(cache)
        return _from_hub(block.model, commit, cache / "hub")


def _from_hub(model: str, commit: str, cache: Path | None) -> Path:
    """A model of the hub; one that is whole here is opened without a word to the hub.

    A thousand pods that each ask it would be told to come later, and it may be away.
    """
    found = cached_hub_folder(model, commit, cache)
    if is_whole(found, _hub_record(found)):
        return found
    _wait_until_writable(found.parents[2])
    folder, paths = _fetch_right(model, commit, cache)
    files = [WeightFile(p.relative_to(folder).as_posix(), p.stat().st_size, "") for p in paths]
    # in pods every process has the same number
    temporary = _hub_record(folder).with_suffix(f".{secrets.token_hex(6)}")
    try:
        temporary.write_bytes(msgspec.json.encode(files))
        sync(temporary)
        temporary.replace(_hub_record(folder))
    except OSError as error:  # a cache that may only be read is asked about again next time
        log.warning("weights %s: %s: %s", model, temporary, error.strerror)
    return folder


def _fetch_right(model: str, commit: str, cache: Path | None) -> tuple[Path, list[Path]]:
    """The folder and its files, each on disk with the bytes that its checksum stands for.

    The hub's library looks at lengths only.
    """
    for _ in range(TRIES):
        folder = hub_folder(model, commit, cache)
        paths = sorted(p for p in folder.rglob("*") if p.is_file())
        with ThreadPoolExecutor(THREADS, "weights") as threads:
            matches = list(threads.map(_keep_and_check, paths))
        wrong = [p for p, match in zip(paths, matches, strict=True) if match is Match.OTHER]
        if not wrong:
            return folder, paths
        for path in wrong:
            log.warning("weights %s: other bytes than its checksum says, fetching it again", path)
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
    raise StoreUnavailable(
        f"model {model}: {wrong[0].name} came with other bytes than its checksum says, twice"
    )


def _keep_and_check(path: Path) -> Match:
    sync(path)
    return check_blob(path)


def _hub_record(folder: Path) -> Path:
    """Beside `snapshots`: what lies in a snapshot would be taken for a file of the model."""
    return folder.parent.parent / f"shardline-{folder.name}.json"


def fill(uri: str, commit: str, cache: Path) -> Path:
    """The folder of one listing of a model on s3://, fetched unless it is there."""
    folder = cache / f"s3-{commit}"
    if is_whole(folder):
        return folder
    _make(cache)
    with _only_one(cache / f"s3-{commit}.lock", uri):
        if is_whole(folder):
            return folder
        files = list_weights(uri)
        if hash_listing(files) != commit:
            raise ModelNotFound(
                f"model {uri}: its files are not the ones that were planned; a job with the new"
                " ones is another job: plan it again"
            )
        partial = cache / f"s3-{commit}.partial"
        if folder.exists():
            log.warning("weights %s: %s is damaged, what is wrong comes again", uri, folder)
            _set_aside(folder, partial, files)
        fetch_files(open_store(uri), files, partial)
        (partial / _RECORD).write_bytes(msgspec.json.encode(files))
        sync(partial / _RECORD)
        partial.rename(folder)
        sync(cache)
    log.info("weights %s: complete in %s", uri, folder)
    return folder


def is_whole(folder: Path, record: Path | None = None) -> bool:
    """Whether a model's folder has every file in its length: bytes were checked when they came."""
    try:
        found = (record or folder / _RECORD).read_bytes()
        files = msgspec.json.decode(found, type=list[WeightFile])
        return all((folder / f.name).stat().st_size == f.size_bytes for f in files)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return False


def _set_aside(folder: Path, partial: Path, files: Sequence[WeightFile]) -> None:
    """Make a damaged folder the start of the next fetch, without its files of a wrong length.

    What spoiled one file may have spoiled others: all of them are held against their checksums again.
    """
    for file in files:
        found = folder / file.name
        if not found.is_file():
            continue
        if found.stat().st_size == file.size_bytes:
            found.replace(part_of(found))
        else:
            found.unlink()
    if partial.exists():
        raise SickMachine(f"{partial}: lies beside a damaged {folder.name}; remove both")
    folder.rename(partial)


def _wait_until_writable(folder: Path) -> None:
    """On a new node the node cache gives the folder to this user; a worker may come a moment earlier."""
    until = time.monotonic() + CacheSettings().cache_patience_s
    if not _may_write(folder) and time.monotonic() < until:
        log.warning("weights: %s may not be written yet, waiting for who makes it", folder)
    while not _may_write(folder) and time.monotonic() < until:
        time.sleep(_LOOK_S)


def _may_write(folder: Path) -> bool:
    """Or make it where it shall be."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK)


def _make(cache: Path) -> None:
    _wait_until_writable(cache)
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SickMachine(f"{cache}: cannot make this folder ({error.strerror})") from error
    if not os.access(cache, os.W_OK):
        raise SickMachine(f"{cache}: this process (uid {os.getuid()}) may not write here")


@contextmanager
def _only_one(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock that ends with the process."""
    descriptor = os.open(lock, os.O_CREAT | os.O_RDWR, 0o666)
    try:
        _take(descriptor, lock, what)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, lock: Path, what: str) -> None:
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("weights %s: another process fetches them, waiting for it", what)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        raise SickMachine(f"{lock}: this disk takes no locks ({error.strerror})") from error
