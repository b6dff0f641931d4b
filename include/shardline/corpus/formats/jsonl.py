"""JSON Lines: a fast typed decode, and a slow second look at every line that it does not settle.

The fast way answers only where it cannot be wrong: guards send lines that msgspec reads more kindly
than RFC 8259 and our rules (bad UTF-8 in unread fields, repeated keys, deep nesting) to the slow way,
which alone gives reasons. Where both read a line, they read the same (a test holds them to it).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from operator import attrgetter, methodcaller
from typing import Any

import msgspec

from shardline.corpus.formats.lines import split_lines
from shardline.corpus.raw import Columns, Digits, RawRow, Rejection, Rows
from shardline.reasons import RejectedReason

MAX_DEPTH = 400
"""Well below Python's recursion limit less the stack of a task, so that it is the same everywhere."""
_MAX_INT_DIGITS = 4_000  # Python refuses to make an int of more than 4,300
_BLANK = b" \t\r"
_STRINGS_AND_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]')
_ESCAPES = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)")
_ASCII_ESCAPE = re.compile(rb"\\u00[2-7]")
_PLAIN_KEY = re.compile(r"[\w $.-]+", re.ASCII)

Look = Callable[[bytes], RawRow | Rejection | None]


def read_jsonl(chunks: Iterable[bytes], columns: Columns) -> Rows:
    """The rows of a JSON Lines file; a row's number is its physical line."""
    first_look, second_look = make_first_look(columns), make_second_look(columns)
    too_long = Rejection(
        RejectedReason.TEXT_TOO_LONG, f"the line has over {columns.max_row_bytes} bytes"
    )
    for number, line in split_lines(chunks, columns.max_row_bytes):
        if line is None:
            yield number, too_long
        elif (row := first_look(line)) is not None:
            yield number, row
        elif line.strip(_BLANK) and (seen := second_look(line)) is not None:
            yield number, seen


def make_first_look(columns: Columns) -> Look:
    """Typed decode: the row's values, or None where the line needs a second look."""
    keys = columns.keys
    record = msgspec.defstruct(
        "Line",
        [(f"f{n}", _type_of(key, columns), None) for n, key in enumerate(keys)],
        rename=dict(zip([f"f{n}" for n in range(len(keys))], keys, strict=True)),
        gc=False,
    )
    decode = msgspec.json.Decoder(record).decode
    pick = _picker(columns, lambda key: attrgetter(f"f{keys.index(key)}"))
    quoted = [b'"' + key.encode() + b'"' for key in keys]
    escape = _escape_guard(keys)

    def look(line: bytes) -> RawRow | None:
        if line.count(b"[") + line.count(b"{") > MAX_DEPTH or escape(line):
            return None
        for key in quoted:
            if line.count(key) > 1:
                return None
        try:
            if not line.isascii():
                line.decode()  # msgspec checks only what it reads
            return pick(decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    return look


def _type_of(key: str, columns: Columns) -> Any:
    """Strings and integers are read exactly; a column that may hold anything is read as it is."""
    is_nested = any(len(c.path) > 1 and c.path[0] == key for c in columns.texts)
    return Any if is_nested or key in columns.carry else str | int | None


def _escape_guard(keys: list[str]) -> Callable[[bytes], object]:
    """Whether one of these keys may stand in the line in an escaped form."""
    if all(_PLAIN_KEY.fullmatch(key) for key in keys):
        return lambda line: b"\\u00" in line and _ASCII_ESCAPE.search(line)
    return lambda line: b"\\" in line


def _picker(
    columns: Columns, getter: Callable[[str], Callable[[Any], Any]]
) -> Callable[[Any], RawRow]:
    """Build a row from a decoded line; `getter` finds its top-level values."""
    get_id = getter(columns.id) if columns.id is not None else None
    texts = [(getter(column.path[0]), column.path) for column in columns.texts]
    carry = [getter(key) for key in columns.carry]

    def pick(line: Any) -> RawRow:
        return RawRow(
            get_id(line) if get_id else None,
            [get(line) if len(path) == 1 else _inner(get(line), path) for get, path in texts],
            [get(line) for get in carry],
        )

    return pick


def _inner(value: Any, path: tuple[str, ...]) -> Any:
    for step in path[1:]:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def make_second_look(columns: Columns) -> Look:
    """The slow and certain way: the row's values, or the first reason why it has none."""
    pick = _picker(columns, lambda key: methodcaller("get", key))
    keys = frozenset(columns.keys)

    def look(line: bytes) -> RawRow | Rejection:
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            return Rejection(RejectedReason.INVALID_UTF8, f"byte {error.start + 1}")
        if _depth(text) > MAX_DEPTH:
            return Rejection(RejectedReason.TOO_DEEP, f"over {MAX_DEPTH} levels")
        pairs: list[tuple[str, Any]] = []
        try:
            value = _parse(text, pairs)
        except ValueError as error:
            return Rejection(RejectedReason.BAD_JSON, str(error))
        if not isinstance(value, dict):
            return Rejection(RejectedReason.NOT_AN_OBJECT, f"it is {_kind(value)}")
        if _has_lone_surrogate(text):
            return Rejection(RejectedReason.LONE_SURROGATE)
        if repeated := _repeated([key for key, _ in pairs], keys):
            return Rejection(RejectedReason.DUPLICATE_KEY, repeated)
        return pick(value)

    return look


def _depth(text: str) -> int:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    deepest = level = 0
    for found in _STRINGS_AND_BRACKETS.finditer(text):
        bracket = found.group()
        if bracket in ("[", "{"):
            level += 1
            deepest = max(deepest, level)
        elif bracket in ("]", "}"):
            level -= 1
    return deepest


def _parse(text: str, outer: list[tuple[str, Any]]) -> Any:
    """The value of a line; `outer` becomes the pairs of the outermost object, repeated keys too."""

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        outer[:] = pairs  # inner objects end first: what stays is the outermost
        return dict(pairs)

    return json.loads(text, object_pairs_hook=keep, parse_constant=_refuse, parse_int=_integer)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _integer(digits: str) -> int | Digits:
    return int(digits) if len(digits) <= _MAX_INT_DIGITS else Digits(digits)


def _has_lone_surrogate(text: str) -> bool:
    """Whether a \\u escape in this valid JSON is half a pair."""
    high_ends_at = -1
    for found in _ESCAPES.finditer(text):
        code = int(found.group(1), 16) if found.group(1) else 0
        is_low, is_expected = 0xDC00 <= code < 0xE000, high_ends_at != -1
        if is_low != is_expected or (is_expected and found.start() != high_ends_at):
            return True
        high_ends_at = found.end() if 0xD800 <= code < 0xDC00 else -1
    return high_ends_at != -1


def _repeated(names: list[str], keys: frozenset[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen and name in keys:
            return name
        seen.add(name)
    return ""


def _kind(value: object) -> str:
    kinds = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")
