"""One file per format. A name's end says the format, and the content must agree.

A new format is one file here and a line in `read_rows`.
"""

from __future__ import annotations

from typing import BinaryIO

from shardline.corpus.formats.compression import text_chunks
from shardline.corpus.formats.csv import read_csv
from shardline.corpus.formats.jsonl import read_jsonl
from shardline.corpus.formats.parquet import read_parquet
from shardline.corpus.raw import Columns, Rows

PACKINGS = {".gz": "gz", ".zst": "zst"}
_TEXTS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}


def format_of(name: str) -> tuple[str, str] | None:
    """(format, packing) by the end of a name; None for what is not read."""
    lower = name.lower()
    if lower.endswith(".parquet"):
        return "parquet", ""
    suffix = next((suffix for suffix in PACKINGS if lower.endswith(suffix)), "")
    lower = lower.removesuffix(suffix)
    found = next((kind for suffix, kind in _TEXTS.items() if lower.endswith(suffix)), None)
    return None if found is None else (found, PACKINGS.get(suffix, ""))


def read_rows(name: str, stream: BinaryIO, columns: Columns) -> Rows:
    """The rows of a file, as its format reads them.

    Raises:
        UnreadableFile: at any row; what came before does not count.
    """
    found = format_of(name)
    assert found is not None, name
    kind, packing = found
    if kind == "parquet":
        return read_parquet(stream, columns)
    read = read_jsonl if kind == "jsonl" else read_csv
    return read(text_chunks(stream, packing), columns)
