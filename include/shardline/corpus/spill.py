"""The spill: every document of a split, ordered by bucket, with its request body at most once.

A scan writes it, the cut reads one bucket of all splits. Documents come in the order of the corpus
(source, then row), so the first of a fingerprint is the original wherever the splits were cut.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from shardline.corpus.pieces import read_stream
from shardline.corpus.records import IdReport, read_id_report, read_scan_report
from shardline.corpus.sample import sample_key
from shardline.errors import JobNotReady
from shardline.plan import Plan
from shardline.store import Store

_HEAD = struct.Struct("<16sIIQII")  # fingerprint, length, input, row, bytes of meta, bytes of body
POSITION = struct.Struct("<IQ")  # input, row
_pack_meta = msgspec.msgpack.Encoder().encode
_unpack_meta = msgspec.msgpack.Decoder(list[Any]).decode


@dataclass(frozen=True, slots=True)
class SpillRecord:
    """One document as the cut needs it."""

    position: tuple[int, int]
    """Index of its file in the plan, and row: the order of the corpus."""
    fingerprint: bytes
    """16 bytes; its hex form is the `custom_id` (see requests.custom_id)."""
    length: int
    """Bytes of the canonical body without the model's name."""
    document_id: str
    source: str
    row: int
    carry: dict[str, Any]
    """Carried columns as values; `carried.cast_carried` gives them their published type."""
    body: bytes | None
    """The canonical body; None when an earlier record of this bucket holds it.
    With `dedupe: none` every record has its body."""


def pack_record(
    fingerprint: bytes,
    length: int,
    position: tuple[int, int],
    document_id: str | None,
    carry: list[Any],
    body: bytes,
) -> bytes:
    """The bytes of one document; an empty body means that an earlier record of the split has it."""
    meta = _pack_meta([document_id, *carry])
    return _HEAD.pack(fingerprint, length, *position, len(meta), len(body)) + meta + body


class SpillReader:
    """Reads buckets first..last (last excluded) of a planned job: open one per bucket set.

    Raises:
        JobNotReady: a split was not scanned, or check_ids has not ended.
    """

    def __init__(self, store: Store, plan: Plan, first: int, last: int) -> None:
        self._store, self._plan, self._first, self._last = store, plan, first, last
        self._job = plan.job_file
        self._report = read_id_report(store, plan)
        self._conflicts = _read_conflicts(store, plan, self._report)
        self._offsets = [
            read_scan_report(store, plan, split).offsets[first : last + 1]
            for split in range(len(plan.splits))
        ]

    def bucket(self, bucket: int) -> Iterator[SpillRecord]:
        """The documents of a bucket in the order of the corpus: no conflict, nothing left out."""
        if not self._first <= bucket < self._last:
            raise JobNotReady(f"bucket {bucket}: not of the set {self._first}..{self._last}")
        at = bucket - self._first
        for split, offsets in enumerate(self._offsets):
            name = partial(self._plan.layout.spill, split)
            yield from self._documents(read_stream(self._store, name, offsets[at], offsets[at + 1]))

    def _documents(self, content: bytes) -> Iterator[SpillRecord]:
        """A dropped row may hold the body of a later one: it is handed on."""
        orphans: dict[bytes, bytes] = {}
        for record in self._records(content):
            if self._is_dropped(record):
                if record.body is not None:
                    orphans[record.fingerprint] = record.body
            elif record.body is None and record.fingerprint in orphans:
                yield replace(record, body=orphans.pop(record.fingerprint))
            else:
                yield record

    def _is_dropped(self, record: SpillRecord) -> bool:
        if record.position in self._conflicts:
            return True
        threshold, sample = self._report.sample_threshold, self._job.corpus.sample
        if threshold is None or sample is None:
            return False
        return sample_key(sample.seed, record.source, record.row).hex() > threshold

    def _records(self, content: bytes) -> Iterator[SpillRecord]:
        inputs, columns = self._plan.inputs, self._job.corpus.carry
        at, end = 0, len(content)
        while at < end:
            fingerprint, length, file, row, meta_size, size = _HEAD.unpack_from(content, at)
            at += _HEAD.size
            document_id, *carry = _unpack_meta(content[at : at + meta_size])
            at += meta_size
            source = inputs[file].source
            yield SpillRecord(
                position=(file, row),
                fingerprint=fingerprint,
                length=length,
                document_id=f"{source}:{row}" if document_id is None else document_id,
                source=source,
                row=row,
                carry=dict(zip(columns, carry, strict=True)),
                body=content[at : at + size] if size else None,
            )
            at += size


def read_bucket(store: Store, plan: Plan, bucket: int) -> Iterator[SpillRecord]:
    """One bucket; who reads several opens a SpillReader, which reads the reports once."""
    return SpillReader(store, plan, bucket, bucket + 1).bucket(bucket)


def _read_conflicts(store: Store, plan: Plan, report: IdReport) -> Mapping[tuple[int, int], None]:
    if not report.conflicts:
        return {}
    content = store.read(plan.layout.conflicts)
    return dict.fromkeys((file, row) for file, row in POSITION.iter_unpack(content))
