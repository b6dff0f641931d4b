"""The rows of a shard file: ids and places in memory, bodies read when they are fed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shardline.errors import ObjectNotFound, WrongInput
from shardline.layout import JobLayout
from shardline.rows import Request, ShardEntry
from shardline.store import Store


class _Bounds(msgspec.Struct):
    max_tokens: Any = None
    max_completion_tokens: Any = None
    metadata: Any = None


class _Head(msgspec.Struct):
    custom_id: str
    body: _Bounds


_HEAD = msgspec.json.Decoder(_Head)
_REQUEST = msgspec.json.Decoder(Request)


class Shard:
    """A shard file on local disk. A row is called by its line number, from 0."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.ids: list[str] = []
        self._places: list[tuple[int, int]] = []
        self._bounds: list[int] = []
        self._index(path)
        self._file = os.open(path, os.O_RDONLY)

    def _index(self, path: Path) -> None:
        start = 0
        with path.open("rb") as file:
            for line in file:
                try:
                    head = _HEAD.decode(line)
                except msgspec.MsgspecError as error:
                    raise WrongInput(
                        f"shard {self.name} line {len(self.ids)}: no request line ({error})"
                    ) from error
                self.ids.append(head.custom_id)
                self._places.append((start, len(line)))
                self._bounds.append(_bound(head.body))
                start += len(line)

    def __len__(self) -> int:
        return len(self.ids)

    def request(self, row: int) -> Request:
        start, size = self._places[row]
        return _REQUEST.decode(os.pread(self._file, size, start))

    def expected(self, row: int) -> int:
        """How long its output is expected to be, in tokens; 0 where nothing says so."""
        return self._bounds[row]

    def in_order(self) -> list[int]:
        """All rows, longest first, so that no long row is left for an emptying engine.

        Longest by the output that is expected where rows differ in it, else by the input. Expected
        is `metadata.expected_tokens` where a request has it, else the most that it may write.
        """
        return sorted(range(len(self)), key=lambda r: (-self._bounds[r], -self._places[r][1], r))


class Row(NamedTuple):
    """A line of a shard file, by its number from 0."""

    shard: Shard
    number: int

    @property
    def request(self) -> Request:
        return self.shard.request(self.number)


def in_far_order(rows: Sequence[Row]) -> list[Row]:
    """Rows of several shards, each shard's in its own order, as work-ahead takes them.

    The longest first where it is known which take long; else each shard from its far end.
    """
    if len({row.shard.expected(row.number) for row in rows}) > 1:
        return sorted(rows, key=lambda row: -row.shard.expected(row.number))
    return list(reversed(rows))


def _bound(body: _Bounds) -> int:
    hint = body.metadata.get("expected_tokens") if isinstance(body.metadata, dict) else None
    # metadata holds strings; Python refuses to read very long ones as numbers
    if isinstance(hint, str) and len(hint) < 19 and hint.isascii() and hint.isdecimal():
        return int(hint)
    bound = body.max_completion_tokens or body.max_tokens
    return bound if isinstance(bound, int) else 0


def fetch_shard(store: Store, layout: JobLayout, name: str, folder: Path) -> Shard:
    """A shard's file, checked against its sidecar.

    Raises:
        WrongInput: no such shard, or bytes that are not those which were cut.
    """
    try:
        entry = msgspec.json.decode(store.read(layout.sidecar(name)), type=ShardEntry)
        path = store.fetch(layout.shard(name), folder)
    except ObjectNotFound as error:
        raise WrongInput(f"shard {name}: {error}") from error
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != entry.sha256:
        raise WrongInput(f"shard {name}: sha256 {found}, but its sidecar says {entry.sha256}")
    return Shard(name, path)
