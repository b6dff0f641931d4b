"""The published table: a Delta table, partitioned by `dt`. deltalake enters here.

What is current in a partition is read from the table's own history, newest first; a Delta restore
is followed to the version that it went back to. The history is never cleaned up: it is the record
of what was published, with the law's figures of each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from shardline.errors import (
    CommitConflict,
    ShardlineError,
    StoreRefused,
    StoreUnavailable,
    first_line,
)
from shardline.layout import published
from shardline.results.vectors import with_lengths, without_lengths
from shardline.store import sync

if TYPE_CHECKING:
    from shardline.store import Store

COMMIT_KEY = "shardline"
_CONFIGURATION: Mapping[str, str | None] = {"delta.enableExpiredLogCleanup": "false"}
_FIRST_PAGE = 50
_SYNCED_COMMITS = 20  # more than can be open at once; what was synced before costs nothing


class NewFile(NamedTuple):
    """A merged file, as a commit adds it. `path` is relative to the table."""

    path: str
    size_bytes: int
    rows: int
    modified_ms: int


class Commit(NamedTuple):
    """One publication in the history: its version, moment (ms) and our record of it."""

    version: int
    timestamp_ms: int
    record: str


def open_table(store: Store, table: str, version: int | None = None) -> Any | None:
    """The Delta table, or None where none was published yet.

    Raises:
        StoreRefused: a store that Delta cannot open, or no such version.
        StoreUnavailable: the store did not answer.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    if store.uri.startswith("memory:"):
        return None
    with _translated(table, StoreRefused):
        try:
            return DeltaTable(_uri(store, table), version=version, storage_options=_options(store))
        except TableNotFoundError:
            return None


def table_schema(store: Store, table: str) -> Any | None:
    """The Arrow schema of the published table, `dt` with it; None where there is none."""
    found = open_table(store, table)
    return None if found is None else arrow_schema(found)


def arrow_schema(table: Any) -> Any:
    """The Arrow schema of an open table; vectors have the length that their field was given."""
    import pyarrow as pa

    return with_lengths(pa.schema(table.schema().to_arrow()))


def create_table(store: Store, table: str, schema: Any) -> Any:
    """The table, made if it is not there; any number of publishers may do so at once.

    Raises:
        StoreRefused: a store that Delta cannot write to.
        CommitConflict: others made it at the same moment; try again.
    """
    from deltalake import DeltaTable, Schema

    if store.uri.startswith("memory:"):
        raise StoreRefused(f"{store.uri}: a table can be published to disk or s3:// only")
    if "%" in _uri(store, table):
        raise StoreRefused(f"{store.uri}: the Delta library cannot write below a path with a %")
    if (found := open_table(store, table)) is not None:
        return found
    with _translated(table):
        return DeltaTable.create(
            _uri(store, table),
            schema=Schema.from_arrow(without_lengths(schema)),
            mode="ignore",
            partition_by=["dt"],
            configuration=_CONFIGURATION,
            storage_options=_options(store),
        )


def replace_partition(
    table: Any,
    partition: str,
    files: list[NewFile],
    schema: Any,
    *,
    transaction: tuple[str, int],
    record: str,
) -> None:
    """One commit on the version that `table` was opened at: the partition holds `files` from now on.

    Raises:
        CommitConflict: somebody else committed since; open the table again and check everything.
        StoreUnavailable: the store did not answer; whether the commit is there is not known.
    """
    from deltalake import CommitProperties, Schema, Transaction
    from deltalake.transaction import AddAction

    adds = [
        AddAction(
            path=file.path,
            size=file.size_bytes,
            partition_values={"dt": partition},
            modification_time=file.modified_ms,
            data_change=True,
            stats=json.dumps({"numRecords": file.rows}),
        )
        for file in files
    ]
    with _translated(transaction[0]):
        table.create_write_transaction(
            adds,
            mode="overwrite",
            schema=Schema.from_arrow(without_lengths(schema)),
            partition_by=["dt"],
            partition_filters=[("dt", "=", partition)],
            commit_properties=CommitProperties(
                custom_metadata={COMMIT_KEY: record},
                app_transactions=[Transaction(*transaction)],
                # the library would rebase by itself and so skip our checks
                max_commit_retries=0,
            ),
        )


def sync_log(store: Store, table: str) -> None:
    """Make what was committed survive a power cut on local disk: the library does not fsync.

    PROTOCOL 23. The newest commits, not ours alone: the one that made the table, and any whose
    publisher died before it came here, would leave a hole in the log that no reader gets past.
    """
    if store.folder is None:
        return
    folder = store.folder / published(table)
    log_folder = folder / "_delta_log"
    newest = sorted(log_folder.glob("*.json"))[-_SYNCED_COMMITS:]
    for path in (*newest, log_folder, folder, folder.parent):
        sync(path)


def commits(table: Any) -> Iterator[Commit]:
    """Publications that led to this version, newest first; undone ones are skipped.

    The library holds Python's lock while it fetches a history: other threads stand still.
    """
    ceiling = table.version()
    for entry in _history(table):
        if entry["version"] > ceiling:
            continue
        if entry.get("operation") == "RESTORE":
            ceiling = _restored_version(table, entry)
            continue
        if COMMIT_KEY in entry:
            yield Commit(entry["version"], entry["timestamp"], entry[COMMIT_KEY])


def partition_files(table: Any, partition: str | None = None) -> list[tuple[str, int]]:
    """(path, rows) of the current files of one partition, or of all."""
    import pyarrow as pa

    with _translated(table.table_uri):
        found = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return sorted(
        (row["path"], row["num_records"])
        for row in found
        if partition is None or row["partition.dt"] == partition
    )


def _history(table: Any) -> Iterator[dict[str, Any]]:
    """The history, newest first, in growing pages: most questions end in the first."""
    seen, page = 0, _FIRST_PAGE
    while True:
        with _translated(table.table_uri):
            entries = table.history(page)
        yield from entries[seen:]
        if len(entries) < page:
            return
        seen, page = len(entries), page * 8


def _restored_version(table: Any, entry: dict[str, Any]) -> int:
    parameters = entry["operationParameters"]
    if parameters.get("version") is not None:
        return int(parameters["version"])
    moment = int(parameters["datetime"])
    return max(int(e["version"]) for e in _history(table) if e["timestamp"] <= moment)


def _uri(store: Store, table: str) -> str:
    """On disk the plain path: a URI with escapes is decoded twice by the library."""
    if store.folder is not None:
        return str(store.folder / published(table))
    return store.uri_of(published(table))


def _options(store: Store) -> dict[str, str] | None:
    return store.delta_options or None


@contextmanager
def _translated(name: str, of_delta: type[ShardlineError] = StoreUnavailable) -> Iterator[None]:
    """Turn what the library raises into errors whose class decides what happens next.

    OSError means that the store did not answer. A DeltaError while a table is opened means that it
    cannot be read, and at a commit anything: another look at the table decides.
    """
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except CommitFailedError as error:
        raise CommitConflict(f"table {name}: {first_line(error)}") from error
    except DeltaError as error:
        raise of_delta(f"table {name}: {first_line(error)}") from error
    except OSError as error:
        raise StoreUnavailable(f"table {name}: {first_line(error)}") from error
