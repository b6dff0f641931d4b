"""CSV by RFC 4180: a strict record splitter that knows the physical line a record starts at.

Quoting is checked, never guessed at. A record whose quoting breaks ends with the line where it broke.
A quote that is never closed swallows the rest of the file: every line of it is a rejected row, so
that `max_rejected` sees the true loss.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from shardline.corpus.formats.lines import split_lines
from shardline.corpus.raw import Columns, RawRow, Rejection, Rows, UnreadableFile
from shardline.reasons import FileReason, RejectedReason

_BLANK = b" \t\r"
_QUOTED = re.compile(rb'[^"]*(?:""[^"]*)*')
_BARE = re.compile(rb'[^",\r]*')
_BAD_QUOTES = "a quote or a carriage return stands where none may"


@dataclass
class _Record:
    """A record as far as it was read. `fields` are unquoted; `broken` says what RFC 4180 forbids."""

    start: int
    fields: list[bytes] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    size: int = 0
    open_field: list[bytes] | None = None
    """The quoted field that goes on in the next line."""
    broken: str = ""
    is_too_long: bool = False


def read_csv(chunks: Iterable[bytes], columns: Columns) -> Rows:
    """The rows of a CSV file; a row's number is the physical line where its record starts.

    Raises:
        UnreadableFile: missing_column or duplicate_column in the header, or a line without an end.
    """
    records = _records(chunks, columns.max_row_bytes)
    header = _header(next(records, None))
    places = {name: _place(header, name) for name in columns.names}
    id_at = None if columns.id is None else places[columns.id]
    texts_at = [places[column.name] for column in columns.texts]
    carry_at = [places[name] for name in columns.carry]
    for record in records:
        cells = _cells(record, len(header))
        if isinstance(cells, Rejection):
            for number in range(record.start, record.start + _lines_lost(record)):
                yield number, cells
        else:
            yield (
                record.start,
                RawRow(
                    None if id_at is None else cells[id_at],
                    [cells[at] for at in texts_at],
                    [cells[at] for at in carry_at],
                ),
            )


def _header(record: _Record | None) -> list[str]:
    """The names in line 1; what is no header has no columns."""
    if record is None or record.start != 1:
        return []
    cells = _cells(record, len(record.fields))
    if isinstance(cells, Rejection):
        raise UnreadableFile(FileReason.MISSING_COLUMN, f"the header: {cells.reason.sentence}")
    return cells


def _place(header: list[str], name: str) -> int:
    found = header.count(name)
    if found == 1:
        return header.index(name)
    if found:
        raise UnreadableFile(FileReason.DUPLICATE_COLUMN, name)
    raise UnreadableFile(FileReason.MISSING_COLUMN, name)


def _cells(record: _Record, width: int) -> list[str] | Rejection:
    """The record's cells, or the first reason why it has none."""
    try:
        b"\n".join(record.raw).decode()
    except UnicodeDecodeError:
        return Rejection(RejectedReason.INVALID_UTF8)
    if record.broken:
        return Rejection(RejectedReason.BAD_CSV, record.broken)
    if record.is_too_long:
        return Rejection(RejectedReason.TEXT_TOO_LONG, f"the record has {record.size} bytes")
    if len(record.fields) != width:
        detail = f"{len(record.fields)} fields, the header has {width}"
        return Rejection(RejectedReason.COLUMN_COUNT, detail)
    return [cell.decode() for cell in record.fields]


def _lines_lost(record: _Record) -> int:
    """How many rows a rejected record counts as: its lines if its quote was never closed."""
    return record.lines if isinstance(record, _Unclosed) else 1


@dataclass
class _Unclosed(_Record):
    lines: int = 0


def _records(chunks: Iterable[bytes], max_bytes: int) -> Iterator[_Record]:
    record: _Record | None = None
    number = 0
    for number, line in split_lines(chunks, max_bytes):
        if record is None:
            if line is not None and not line.strip(_BLANK):
                continue
            record = _Record(number)
        if line is None:  # where its quotes stand nobody knows: what follows would be a guess
            detail = f"line {number} has over {max_bytes} bytes"
            raise UnreadableFile(FileReason.CORRUPT, detail)
        _keep(record, line, max_bytes)
        _scan(record, line)
        if record.open_field is None:
            yield record
            record = None
    if record is not None:
        yield _unclosed(record, number)


def _unclosed(record: _Record, last_line: int) -> _Record:
    lines = last_line - record.start + 1
    broken = f"the quote opened in line {record.start} is never closed"
    return _Unclosed(record.start, raw=record.raw, size=record.size, broken=broken, lines=lines)


def _keep(record: _Record, line: bytes, max_bytes: int) -> None:
    """Hold the bytes of the record, unless they are too many."""
    record.size += len(line) + 1
    if record.size > max_bytes:
        record.is_too_long = True
        record.raw.clear()
        record.fields.clear()
    else:
        record.raw.append(line)


def _scan(record: _Record, line: bytes) -> None:
    """Read one physical line into the record: its fields, and whether a quoted one goes on."""
    if record.open_field is None and b'"' not in line:
        _scan_bare_line(record, line)
        return
    at = 0
    while at >= 0:
        at = _scan_field(record, line, at)


def _scan_bare_line(record: _Record, line: bytes) -> None:
    line = line.removesuffix(b"\r")
    if b"\r" in line:
        record.broken = _BAD_QUOTES
    elif not record.is_too_long:
        record.fields.extend(line.split(b","))


def _scan_field(record: _Record, line: bytes, at: int) -> int:
    """Read the field at `at`; return where the next one begins, or -1 at the end of the line."""
    if record.open_field is None and line[at : at + 1] == b'"':
        record.open_field, at = [], at + 1
    if record.open_field is None:
        found = _BARE.match(line, at)
        assert found is not None
        return _end_field(record, line, found.group(), found.end())
    found = _QUOTED.match(line, at)
    assert found is not None
    if not record.is_too_long:
        record.open_field.append(found.group().replace(b'""', b'"'))
    if found.end() == len(line):
        return -1
    content = b"\n".join(record.open_field)
    record.open_field = None
    return _end_field(record, line, content, found.end() + 1)


def _end_field(record: _Record, line: bytes, content: bytes, at: int) -> int:
    if not record.is_too_long:
        record.fields.append(content)
    if line[at : at + 1] == b",":
        return at + 1
    if line[at:] not in (b"", b"\r"):
        record.broken = _BAD_QUOTES
    return -1
