"""The records of attempts in the store: made, read, written in one place.

A record has one writer: its worker, and after the worker's end whoever started it.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from shardline.layout import JobLayout
from shardline.plan import timestamp
from shardline.rows import Attempt, Progress
from shardline.store import Store


def now() -> str:
    """The moment, as records have it: ISO 8601, UTC."""
    return timestamp(datetime.now(UTC))


def new_attempt(
    attempt: str,
    shard: str,
    generation: int,
    host: str = "",
    pid: int = 0,
    pod_uid: str | None = None,
    node: str | None = None,
) -> Attempt:
    """The record of an attempt that has done nothing yet."""
    return Attempt(attempt, shard, generation, host, pid, now(), pod_uid, node)


def read_attempt(store: Store, layout: JobLayout, shard: str, attempt: str) -> Attempt | None:
    """One record, if there is one."""
    found = store.read_or_none(layout.attempt(shard, attempt))
    return None if found is None else msgspec.json.decode(found, type=Attempt)


def read_attempts(
    store: Store, layout: JobLayout, shard: str, generation: int | None = None
) -> list[Attempt]:
    """The records of a shard, of all generations or of one, oldest first: ids begin with the time."""
    listed = store.list(layout.attempts(shard))
    found = [msgspec.json.decode(store.read(record.path), type=Attempt) for record in listed]
    return [record for record in found if generation in (None, record.generation)]


def read_progress(store: Store, path: str) -> Progress | None:
    """A worker's latest word (JobLayout.progress), if it has said one."""
    found = store.read_or_none(path)
    return None if found is None else msgspec.json.decode(found, type=Progress)


def write_attempt(store: Store, layout: JobLayout, attempt: Attempt) -> None:
    """Replace a record by what is known now."""
    content = msgspec.json.format(msgspec.json.encode(attempt), indent=1)
    store.write(layout.attempt(attempt.shard, attempt.attempt), content)
