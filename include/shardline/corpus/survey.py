"""A quick look at a corpus before it is read: some 20,000 documents from all over it.

Evenly spaced blocks of each plain file, row groups of each Parquet file, the beginning of each packed
one; every document stands for the share of the corpus that its block was taken from. The same files
give the same survey. It decides no outcome: only how evenly buckets are filled, and estimates.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from shardline.corpus.formats import format_of
from shardline.corpus.formats.compression import check_packing, text_chunks
from shardline.corpus.formats.csv import read_csv
from shardline.corpus.formats.jsonl import read_jsonl
from shardline.corpus.formats.parquet import open_parquet, survey_groups
from shardline.corpus.raw import Columns, Rejection, Rows, UnreadableFile, columns_of
from shardline.corpus.requests import BodyRenderer, fingerprint_of
from shardline.corpus.sources import opened
from shardline.corpus.validation import Document, make_validator
from shardline.job import JobFile
from shardline.plan import InputFile

SURVEYED_DOCUMENTS = 20_000
_MAX_FILES = 64
_BLOCK_BYTES = 128 << 10
_LONG_BLOCK_BYTES = 8 << 20
_TOTAL_BLOCKS = 256  # requests to an object store that a survey costs, about
_READ_BYTES = 512 << 10
_PACKED_BYTES = 16 << 20
_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Key:
    """A surveyed document: where it sorts, and how many documents of the corpus it stands for."""

    length: int
    prefix: str
    weight: float


@dataclass
class Survey:
    """What was seen, scaled up to the whole corpus."""

    keys: list[Key] = field(default_factory=list)
    rows: float = 0
    """Rows of the corpus, exact for Parquet."""

    @property
    def documents(self) -> float:
        return sum(key.weight for key in self.keys)

    @property
    def request_bytes(self) -> float:
        return sum(key.weight * key.length for key in self.keys)


def survey_corpus(
    job: JobFile, inputs: list[InputFile], documents: int = SURVEYED_DOCUMENTS
) -> Survey:
    """Look at about so many documents of the corpus.

    Files that cannot be read are passed over here: scan_corpus names them.
    """
    survey = Survey()
    chosen = _evenly(inputs, _MAX_FILES)
    for file in chosen:
        # the files that are not opened are taken to be like those that are
        share = sum(f.size_bytes for f in inputs) / max(1, sum(f.size_bytes for f in chosen))
        with suppress(UnreadableFile), opened(file, _READ_BYTES) as stream:
            quota = _Quota(documents // len(chosen) + 1, max(2, _TOTAL_BLOCKS // len(chosen)))
            _survey_file(survey, job, file, stream, quota, share)
    return survey


@dataclass(frozen=True)
class _Quota:
    """How much of one file is looked at: so many rows, in so many places."""

    rows: int
    places: int


def _evenly(inputs: list[InputFile], n: int) -> list[InputFile]:
    if len(inputs) <= n:
        return inputs
    return [inputs[i * len(inputs) // n] for i in range(n)]


def _survey_file(
    survey: Survey, job: JobFile, file: InputFile, stream: BinaryIO, quota: _Quota, share: float
) -> None:
    columns, validate, renderer = columns_of(job), make_validator(job), BodyRenderer(job)
    for rows, scale in _parts(file, stream, columns, quota):
        weight = scale * share
        for _, values in rows:
            survey.rows += weight
            found = values if isinstance(values, Rejection) else validate(values)
            if isinstance(found, Document):
                body = renderer.render(found.texts)
                prefix = fingerprint_of(body)[:4].hex()
                survey.keys.append(Key(len(body), prefix, weight))


def _parts(
    file: InputFile, stream: BinaryIO, columns: Columns, quota: _Quota
) -> Iterator[tuple[Rows, float]]:
    """Rows from all over a file, and how many rows of it each stands for."""
    found = format_of(file.source)
    assert found is not None
    kind, packing = found
    if kind == "parquet":
        yield from survey_groups(
            open_parquet(stream), columns, quota.rows, max(1, quota.places // 8)
        )
        return
    read, header = (read_jsonl, b"") if kind == "jsonl" else (read_csv, _header(stream, packing))
    blocks = _packed_block if packing else _plain_blocks
    for block, scale in blocks(file.size_bytes, stream, packing, quota):
        # a block from the middle has no header of its own; the first one's is no row
        yield read([header + block.removeprefix(header)], columns), scale


def _header(stream: BinaryIO, packing: str) -> bytes:
    """The first line of a CSV file, without the mark that may stand before it."""
    stream.seek(0)
    first = next(iter(text_chunks(stream, packing)), b"")
    return first[: first.find(b"\n") + 1]


def _packed_block(
    size: int, stream: BinaryIO, packing: str, quota: _Quota
) -> Iterator[tuple[bytes, float]]:
    """The beginning of a packed file: its end is known only by unpacking all of it."""
    stream.seek(0)
    taken, unpacked = [], 0
    for chunk in text_chunks(stream, packing):
        taken.append(chunk)
        unpacked += len(chunk)
        if unpacked >= _PACKED_BYTES:
            break
    is_cut = unpacked >= _PACKED_BYTES
    total = unpacked * size / max(1, min(stream.tell(), size)) if is_cut else unpacked
    block = _first_lines(b"".join(taken), quota.rows, is_cut=is_cut)
    yield block, total / max(1, len(block))


def _plain_blocks(
    size: int, stream: BinaryIO, packing: str, quota: _Quota
) -> Iterator[tuple[bytes, float]]:
    """Evenly spaced blocks of whole lines; long ones where lines are longer than a block."""
    stream.seek(0)
    check_packing(stream.read(4), packing)
    for length in (_BLOCK_BYTES, _LONG_BLOCK_BYTES):
        count = max(1, min(quota.places, size // length))
        starts = [n * size // count for n in range(count)]
        found = [
            _lines_at(stream, start, length, size, quota.rows // count + 1) for start in starts
        ]
        if any(found) or size <= length:
            yield from ((block, size / count / len(block)) for block in found if block)
            return


def _lines_at(stream: BinaryIO, start: int, length: int, size: int, most: int) -> bytes:
    stream.seek(start)
    block = stream.read(length)
    if start == 0:
        block = block.removeprefix(_MARK)
    else:
        block = block[block.find(b"\n") + 1 :] if b"\n" in block else b""
    return _first_lines(block, most, is_cut=start + length < size)


def _first_lines(block: bytes, most: int, *, is_cut: bool) -> bytes:
    """At most so many lines; the last one only if it is whole."""
    lines = block.split(b"\n", most)
    if len(lines) > most or is_cut:
        lines = [*lines[:-1], b""]
    return b"\n".join(lines)
