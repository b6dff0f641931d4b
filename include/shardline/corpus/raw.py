"""What a format reader hands over: the columns that the job reads, or why it cannot.

Readers know bytes and formats; what makes a row a document is decided in `validation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from shardline.errors import WrongInput
from shardline.job import JobFile
from shardline.reasons import FileReason, RejectedReason
from shardline.template import Column

CHUNK_BYTES = 1 << 20


class RawRow(msgspec.Struct, gc=False):
    """The values of a row; None where a column is missing or null."""

    id: Any
    texts: list[Any]
    carry: list[Any]


class Rejection(msgspec.Struct, frozen=True, gc=False):
    """Why a row is no document."""

    reason: RejectedReason
    detail: str = ""


Rows = Iterator[tuple[int, RawRow | Rejection]]


class Digits(str):
    """An integer too long for Python to make an `int` of: its decimal digits."""

    __slots__ = ()


@dataclass(frozen=True)
class Columns:
    """The columns that a job reads."""

    id: str | None
    texts: tuple[Column, ...]
    carry: tuple[str, ...]
    max_row_bytes: int
    """A line or record over this is rejected unread: memory stays bounded whatever the file."""

    @property
    def names(self) -> list[str]:
        """Each by its full name, once."""
        ids = [self.id] if self.id is not None else []
        return list(dict.fromkeys([*ids, *(c.name for c in self.texts), *self.carry]))

    @property
    def keys(self) -> list[str]:
        """The top-level name of each, once."""
        ids = [self.id] if self.id is not None else []
        return list(dict.fromkeys([*ids, *(c.path[0] for c in self.texts), *self.carry]))


def columns_of(job: JobFile) -> Columns:
    """The columns that this job reads.

    A line may be far longer than its texts: a character can be six bytes of JSON, and other
    columns stand beside them.
    """
    limit = max(64 << 20, 16 * job.limits.max_text_bytes)
    return Columns(job.corpus.id, job.text_columns, job.corpus.carry, limit)


class UnreadableFile(WrongInput):
    """A file that cannot be used as a whole; nothing of it counts."""

    def __init__(self, reason: FileReason, detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason}: {detail or reason.sentence}")
