"""Parquet through pyarrow: only the columns that the job reads, in batches of bounded bytes.

A file is judged by those columns; the others may be of any type. One invalid byte in a string
column fails the whole batch in pyarrow: such a batch is read again value by value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, BinaryIO

from shardline.corpus.formats.compression import check_packing
from shardline.corpus.raw import Columns, RawRow, Rejection, Rows, UnreadableFile
from shardline.errors import first_line
from shardline.reasons import FileReason, RejectedReason

_BATCH_BYTES = 16 << 20
_MAX_BATCH_ROWS = 4_096
_FOOTER_BYTES = 8  # its length, and the magic bytes at the end
_INVALID = object()


def read_parquet(stream: BinaryIO, columns: Columns) -> Rows:
    """The rows of a Parquet file, numbered from 1 through all row groups.

    Raises:
        UnreadableFile: wrong_format, truncated, corrupt, or a column that is missing, doubled or
            of a type that cannot be used.
    """
    import pyarrow as pa

    file = open_parquet(stream)
    _check_columns(file.schema_arrow, columns)
    try:
        yield from _rows(file, columns)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFile(FileReason.CORRUPT, first_line(error)) from error


def open_parquet(stream: BinaryIO) -> Any:
    """The file behind a footer that could be read (a pyarrow.parquet.ParquetFile)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_packing(stream.read(4), "parquet")
    size = stream.seek(0, 2)
    stream.seek(max(4, size - 4))
    if size < 4 + _FOOTER_BYTES or stream.read(4) != b"PAR1":
        raise UnreadableFile(FileReason.TRUNCATED, "the footer is missing")
    stream.seek(0)
    try:
        return pq.ParquetFile(stream, pre_buffer=False, buffer_size=1 << 20)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFile(FileReason.CORRUPT, first_line(error)) from error


def _rows(file: Any, columns: Columns) -> Rows:
    number = 0
    for group in range(file.metadata.num_row_groups):
        for batch in file.iter_batches(
            batch_size=_batch_rows(file.metadata.row_group(group), columns),
            row_groups=[group],
            columns=columns.names,
        ):
            for values in _values(batch, columns):
                number += 1
                yield number, values


def survey_groups(
    file: Any, columns: Columns, quota: int, places: int
) -> Iterator[tuple[Rows, float]]:
    """The first rows of some row groups all over the file, and how many rows each stands for."""
    import pyarrow as pa

    _check_columns(file.schema_arrow, columns)
    groups = file.metadata.num_row_groups
    chosen = [n * groups // places for n in range(places)]
    chosen = sorted(set(chosen)) if groups else []
    for group in chosen:
        held = file.metadata.row_group(group).num_rows
        if taken := min(held, quota // len(chosen) + 1):
            size = min(taken, _batch_rows(file.metadata.row_group(group), columns))
            batches = file.iter_batches(batch_size=size, row_groups=[group], columns=columns.names)
            rows = (values for batch in batches for values in _values(batch, columns))
            try:
                yield (
                    enumerate(itertools.islice(rows, taken), 1),
                    file.metadata.num_rows / len(chosen) / taken,
                )
            except (pa.ArrowException, OSError) as error:
                raise UnreadableFile(FileReason.CORRUPT, first_line(error)) from error


def _batch_rows(group: Any, columns: Columns) -> int:
    """So many rows that a batch holds about _BATCH_BYTES of the columns that are read."""
    wanted = tuple(columns.keys)
    size = sum(
        column.total_uncompressed_size
        for column in map(group.column, range(group.num_columns))
        if column.path_in_schema.split(".")[0] in wanted or column.path_in_schema in wanted
    )
    per_row = max(1, int(size) // max(1, group.num_rows))
    return int(max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // per_row)))


def _values(batch: Any, columns: Columns) -> Iterator[RawRow | Rejection]:
    ids = _read(batch, (columns.id,)) if columns.id is not None else [None] * batch.num_rows
    texts = [_read(batch, column.path) for column in columns.texts]
    carry = [_read(batch, (name,), as_json=True) for name in columns.carry]
    for n in range(batch.num_rows):
        row = RawRow(ids[n], [t[n] for t in texts], [c[n] for c in carry])
        if any(value is _INVALID for value in (row.id, *row.texts, *row.carry)):
            yield Rejection(RejectedReason.INVALID_UTF8)
        else:
            yield row


def _read(batch: Any, path: tuple[str, ...], *, as_json: bool = False) -> list[Any]:
    """The values of a column, a struct's field for a longer path; _INVALID where it is no UTF-8."""
    import pyarrow.compute as pc

    column = batch.column(batch.schema.get_field_index(path[0]))
    for step in path[1:]:
        column = pc.struct_field(column, step)
    if as_json and _is_written_as_text(column.type):
        column = column.cast("string")
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        return [_one(value) for value in column]


def _one(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        return _INVALID


def _check_columns(schema: Any, columns: Columns) -> None:
    for name in columns.keys:
        if (found := schema.names.count(name)) != 1:
            reason = FileReason.DUPLICATE_COLUMN if found else FileReason.MISSING_COLUMN
            raise UnreadableFile(reason, name)
    paths = [column.path for column in columns.texts]
    for path in [*paths, (columns.id,)] if columns.id is not None else paths:
        found_type = _type_at(schema, path)
        if not _is_string_or_integer(found_type):
            raise UnreadableFile(FileReason.COLUMN_TYPE, f"{'.'.join(path)} is {found_type}")
    for name in columns.carry:
        if not _is_json(found_type := schema.field(name).type):
            raise UnreadableFile(FileReason.COLUMN_TYPE, f"{name} is {found_type}")


def _type_at(schema: Any, path: tuple[str, ...]) -> Any:
    import pyarrow as pa

    found = schema.field(path[0]).type
    for step in path[1:]:
        if not pa.types.is_struct(found):
            raise UnreadableFile(FileReason.COLUMN_TYPE, f"{'.'.join(path)} is within {found}")
        if found.get_field_index(step) < 0:
            raise UnreadableFile(FileReason.MISSING_COLUMN, ".".join(path))
        found = found.field(step).type
    return found


def _is_string_or_integer(found: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(found):
        found = found.value_type
    return _is_string(found) or bool(types.is_integer(found))


def _is_string(found: Any) -> bool:
    from pyarrow import types

    return bool(
        types.is_string(found) or types.is_large_string(found) or types.is_string_view(found)
    )


def _is_json(found: Any) -> bool:
    """Whether a carried column's values can become JSON."""
    from pyarrow import types

    if types.is_dictionary(found):
        return _is_json(found.value_type)
    if types.is_list(found) or types.is_large_list(found) or types.is_fixed_size_list(found):
        return _is_plain(found.value_type)
    if types.is_struct(found):
        return all(_is_plain(found.field(n).type) for n in range(found.num_fields))
    return _is_plain(found) or _is_written_as_text(found)


def _is_plain(found: Any) -> bool:
    from pyarrow import types

    is_scalar = types.is_null(found) or types.is_boolean(found) or types.is_floating(found)
    if is_scalar or _is_string_or_integer(found):
        return True
    is_nested = types.is_nested(found) and not types.is_map(found)
    return bool(is_nested) and _is_json(found)


def _is_written_as_text(found: Any) -> bool:
    """Dates, times and decimals have no JSON of their own: they travel as Arrow writes them."""
    from pyarrow import types

    return bool(
        types.is_date(found)
        or types.is_time(found)
        or types.is_timestamp(found)
        or types.is_decimal(found)
    )
