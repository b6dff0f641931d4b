"""The rules for one row: what makes its values a document, in the order of `RejectedReason`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from shardline.corpus.carried import keep_carried, kind_of
from shardline.corpus.raw import Digits, RawRow, Rejection
from shardline.job import JobFile
from shardline.reasons import RejectedReason

# Unicode's White_Space. str.isspace() also takes the separators U+001C to U+001F, which are none.
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


class Document(msgspec.Struct, gc=False):
    """A valid row: its texts in the order of `job.text_columns`, and its carried columns."""

    id: str | None
    texts: list[str]
    carry: list[Any]


def make_validator(job: JobFile) -> Callable[[RawRow], Document | Rejection]:
    """The check of one row under the rules of this job."""
    names = [column.name for column in job.text_columns]
    max_bytes, has_id = job.limits.max_text_bytes, job.corpus.id is not None

    def check(row: RawRow) -> Document | Rejection:
        texts = _texts(row.texts, names, max_bytes)
        if isinstance(texts, Rejection):
            return texts
        document_id = _id(row.id) if has_id else None
        if isinstance(document_id, Rejection):
            return document_id
        return Document(document_id, texts, [keep_carried(value) for value in row.carry])

    return check


def _texts(values: list[Any], names: list[str], max_bytes: int) -> list[str] | Rejection:
    if None in values:
        return Rejection(RejectedReason.NO_TEXT, names[values.index(None)])
    texts: list[str] = []
    size, has_text = 0, False
    for value, name in zip(values, names, strict=True):
        text = value if type(value) is str else _digits(value)
        if text is None:
            return Rejection(RejectedReason.TEXT_NOT_STRING, f"{name} is {_kind(value)}")
        size += len(text) if text.isascii() else len(text.encode())
        has_text = has_text or not is_blank(text)
        texts.append(text)
    if not has_text:
        return Rejection(RejectedReason.EMPTY_TEXT)
    if size > max_bytes:
        return Rejection(RejectedReason.TEXT_TOO_LONG, f"{size} bytes")
    return texts


def is_blank(text: str) -> bool:
    """Whether it is empty or only white space (Unicode's property; a zero-width space is none)."""
    return not text or (text.isspace() and not text.strip(_WHITE_SPACE))


def _id(value: Any) -> str | Rejection:
    if value is None:
        return Rejection(RejectedReason.NO_ID)
    if type(value) is str:
        return Rejection(RejectedReason.BAD_ID, "it is empty") if is_blank(value) else value
    digits = _digits(value)
    return Rejection(RejectedReason.BAD_ID, f"it is {_kind(value)}") if digits is None else digits


def _digits(value: Any) -> str | None:
    """The decimal digits of an integer; a boolean is none."""
    if type(value) is int or type(value) is Digits:
        return str(value)
    return None


def _kind(value: Any) -> str:
    kinds = {"bool": "a boolean", "float": "a number with a fraction or an exponent"}
    return kinds.get(kind_of(value) or "", "an array or object")
