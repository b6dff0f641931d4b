"""Which files of a published table are current, for readers that do not speak Delta.

A glob over the table's folder also finds files that were superseded, so it must not be used. The
partition column `dt` is not inside the files: it stands in their paths (`dt=2026-11-28/...`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardline.errors import WrongInput
from shardline.layout import published
from shardline.results.delta import open_table, partition_files
from shardline.results.publish import current_publication

if TYPE_CHECKING:
    from shardline.rows import Law
    from shardline.store import Store


def published_files(
    store: Store, table: str, partition: str | None = None, version: int | None = None
) -> list[str]:
    """The current files of a table, or of one partition of it: paths on disk, or s3:// URIs.

    Raises:
        WrongInput: no such table.
        StoreRefused: no such version of it.
    """
    opened = open_table(store, table, version)
    if opened is None:
        raise WrongInput(f"table {table}: nothing is published under this name in {store.uri}")
    folder = published(table)
    paths = [f"{folder}/{path}" for path, _ in partition_files(opened, partition)]
    if store.folder is not None:
        return [str(store.folder / path) for path in paths]
    return [store.uri_of(path) for path in paths]


def law_of(store: Store, table: str, partition: str | None) -> Law | None:
    """The law's figures of what is current in a partition, as its commit carries them."""
    current = current_publication(store, table, partition)
    return None if current is None else current.law
