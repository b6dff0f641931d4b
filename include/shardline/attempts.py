"""The records of attempts in the store: made, read, written in one place.

A record has one writer: its worker, and after the worker's end whoever started it.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from shardline.layout import JobLayout
from shardline.plan import timestamp
from shardline.rows import Attempt
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


def read_attempts(store: Store, layout: JobLayout, shard: str) -> list[Attempt]:
    """The records of a shard, oldest first: ids begin with the time."""
    listed = store.list(layout.attempts(shard))
    return [msgspec.json.decode(store.read(found.path), type=Attempt) for found in listed]


def write_attempt(store: Store, layout: JobLayout, attempt: Attempt) -> None:
    """Replace a record by what is known now."""
    content = msgspec.json.format(msgspec.json.encode(attempt), indent=1)
    store.write(layout.attempt(attempt.shard, attempt.attempt), content)
