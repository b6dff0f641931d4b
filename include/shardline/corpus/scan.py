"""scan_corpus: read a split, keep its documents in bucket order, name every row that is none.

The report is put last, so a split is scanned when its report exists. Everything is named by the
planned split and equal on every retry, so that a repeated scan cannot count a row twice (PROTOCOL 5).
A file that cannot be read to its end fails the split; all such files are named at once.
"""

from __future__ import annotations

import heapq
import logging
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection
from functools import partial
from pathlib import Path

import msgspec
from blake3 import blake3

from shardline.corpus.carried import kind_of
from shardline.corpus.formats import read_rows
from shardline.corpus.pieces import BucketWriter
from shardline.corpus.raw import RawRow, Rejection, UnreadableFile, columns_of
from shardline.corpus.records import FileOutcome, SplitReport, id_partitions
from shardline.corpus.requests import BodyRenderer, custom_id, fingerprint_of, request_line
from shardline.corpus.sample import sample_key
from shardline.corpus.sources import opened
from shardline.corpus.spill import POSITION, pack_record
from shardline.corpus.validation import Document, make_validator
from shardline.errors import CorpusError, FileProblem
from shardline.plan import InputFile, Plan
from shardline.reasons import RejectedReason
from shardline.rows import RejectedRow
from shardline.store import Store

log = logging.getLogger(__name__)

_LOG_EVERY_S = 10
_LOG_CHECK_ROWS = 4_096
_REMEMBERED = (
    2_000_000  # fingerprints whose body this split wrote: 200 MB; later repeats write it again
)
_MAX_LINE_OVERHEAD = 1_000  # bytes of a request line beside its body, at most


def scan_corpus(store: Store, plan: Plan, split: int) -> SplitReport:
    """Read the files of a split; put its spill, ids, rejected rows and report.

    Raises:
        CorpusError: files that cannot be read to their end, each with its reason.
    """
    name = plan.layout.scan_report(split)
    if (found := store.read_or_none(name)) is not None:
        return msgspec.json.decode(found, type=SplitReport)
    with SplitScan(plan, split) as scan:
        problems = _problems(scan.read_files())
        if problems:
            raise CorpusError(f"{len(problems)} files of the corpus cannot be read", problems)
        return scan.put(store)


def scan_good_files(store: Store, plan: Plan, split: int) -> SplitReport:
    """The same without the files that cannot be read: they are in the report, and nothing of them
    counts, neither as rows nor as originals of duplicates."""
    with SplitScan(plan, split) as scan:
        outcomes = scan.read_files()
        bad = {outcome.source: outcome for outcome in outcomes if outcome.outcome == "error"}
        if not bad:
            return scan.put(store)
    with SplitScan(plan, split) as scan:
        scan.read_files(without=bad)
        scan.files = [bad.get(outcome.source, outcome) for outcome in outcomes]
        return scan.put(store)


def _problems(outcomes: list[FileOutcome]) -> list[FileProblem]:
    return [FileProblem(o.source, o.reason, o.detail) for o in outcomes if o.outcome == "error"]


class SplitScan:
    """One pass over the files of a split. Memory is bounded: what it keeps goes to local disk."""

    def __init__(self, plan: Plan, split: int) -> None:
        self._plan, self._split, self._job = plan, split, plan.job_file
        self._columns = columns_of(self._job)
        self._validate = make_validator(self._job)
        self._renderer = BodyRenderer(self._job)
        self._bounds = [(length, bytes.fromhex(prefix)) for length, prefix in plan.bounds]
        self._spill = BucketWriter(plan.buckets)
        self._ids = BucketWriter(id_partitions(plan))
        self._partitions = id_partitions(plan)
        self._smallest: list[int] = []
        self._seen: set[bytes] = set()
        self._kinds: dict[str, set[str]] = {name: set() for name in self._job.corpus.carry}
        self._rejected: Counter[str] = Counter()
        self._rejected_file = tempfile.NamedTemporaryFile(suffix=".jsonl")  # noqa: SIM115
        self._rows = self._documents = 0
        self._clock = _ProgressLog(plan.job_id, split)
        self.files: list[FileOutcome] = []

    def __enter__(self) -> SplitScan:
        return self

    def __exit__(self, *_: object) -> None:
        self._spill.close()
        self._ids.close()
        self._rejected_file.close()

    def read_files(self, without: Collection[str] = ()) -> list[FileOutcome]:
        """Read the files of the split in order; a file that fails is an outcome, not an end."""
        first, last = self._plan.splits[self._split]
        for number in range(first, last):
            file = self._plan.inputs[number]
            if file.source not in without:
                self.files.append(self._read_file(number, file))
        return self.files

    def _read_file(self, number: int, file: InputFile) -> FileOutcome:
        rows, documents, rejected = self._rows, self._documents, self._rejected.total()
        try:
            with opened(file) as stream:
                for row, values in read_rows(file.source, stream, self._columns):
                    self._take(number, file.source, row, values)
        except UnreadableFile as error:
            return FileOutcome(file.source, "error", reason=error.reason, detail=error.detail)
        return FileOutcome(
            file.source,
            "read",
            rows=self._rows - rows,
            documents=self._documents - documents,
            rejected=self._rejected.total() - rejected,
        )

    def _take(self, number: int, source: str, row: int, values: RawRow | Rejection) -> None:
        self._rows += 1
        if self._rows % _LOG_CHECK_ROWS == 0:
            self._clock.tick(self._rows, source)
        found = values if isinstance(values, Rejection) else self._validate(values)
        if isinstance(found, Document):
            found = self._keep(number, source, row, found) or found
        if isinstance(found, Rejection):
            self._rejected[found.reason.value] += 1
            line = RejectedRow(source, row, found.reason, found.detail)
            self._rejected_file.write(msgspec.json.encode(line) + b"\n")

    def _keep(self, number: int, source: str, row: int, document: Document) -> Rejection | None:
        """Spill a document and its id, or say that its request is too long for any shard."""
        body = self._renderer.render(document.texts)
        fingerprint = fingerprint_of(body)
        if self._is_too_long(body, fingerprint, source, row):
            return Rejection(RejectedReason.REQUEST_TOO_LONG, f"{len(body)} bytes")
        self._documents += 1
        for name, value in zip(self._kinds, document.carry, strict=True):
            if (kind := kind_of(value)) is not None:
                self._kinds[name].add(kind)
        if self._is_wanted(number, source, row, document, fingerprint):
            self._spill_document(number, row, document, fingerprint, body)
        return None

    def _is_too_long(self, body: bytes, fingerprint: bytes, source: str, row: int) -> bool:
        limit = self._job.shards.max_bytes
        if len(body) + _MAX_LINE_OVERHEAD <= limit:
            return False
        name = custom_id(self._job, fingerprint, source, row)
        return len(request_line(self._job, body, name)) > limit

    def _is_wanted(
        self, number: int, source: str, row: int, document: Document, fingerprint: bytes
    ) -> bool:
        """Note the id; False where the sample certainly leaves this document out."""
        sample = self._job.corpus.sample
        key = sample_key(sample.seed, source, row) if sample else b""
        if document.id is not None:
            hashed = blake3(document.id.encode()).digest(16)
            partition = int.from_bytes(hashed[:2]) * self._partitions >> 16
            self._ids.add(partition, hashed + fingerprint + POSITION.pack(number, row) + key)
            return True
        return sample is None or self._is_among_smallest(int.from_bytes(key), sample.rows)

    def _is_among_smallest(self, key: int, n: int) -> bool:
        """Keep the n smallest keys of the split (negated, so that the heap gives the largest)."""
        if len(self._smallest) < n:
            heapq.heappush(self._smallest, -key)
            return True
        return heapq.heappushpop(self._smallest, -key) != -key

    def _spill_document(
        self, number: int, row: int, document: Document, fingerprint: bytes, body: bytes
    ) -> None:
        bucket = bisect_left(self._bounds, (len(body), fingerprint[:4]))
        is_repeat = self._job.corpus.dedupe == "exact" and fingerprint in self._seen
        kept = b"" if is_repeat else body
        self._spill.add(
            bucket,
            pack_record(fingerprint, len(body), (number, row), document.id, document.carry, kept),
        )
        if len(self._seen) < _REMEMBERED:
            self._seen.add(fingerprint)

    def put(self, store: Store) -> SplitReport:
        """Put everything, the report last."""
        layout, split = self._plan.layout, self._split
        for key in sorted(-key for key in self._smallest):
            self._ids.add(0, key.to_bytes(16))
        offsets = self._spill.put(store, partial(layout.spill, split))
        id_offsets = self._ids.put(store, partial(layout.ids, split))
        self._rejected_file.flush()
        store.put_same(layout.rejected(split), Path(self._rejected_file.name))
        report = SplitReport(
            split=split,
            rows_read=self._rows,
            documents=self._documents,
            rejected=dict(sorted(self._rejected.items())),
            files=self.files,
            kinds={name: sorted(kinds) for name, kinds in self._kinds.items()},
            offsets=offsets,
            id_offsets=id_offsets,
        )
        store.put_same(layout.scan_report(split), msgspec.json.encode(report))
        self._clock.end(self._rows, self._documents)
        return report


class _ProgressLog:
    """A line about every ten seconds, so that a long split is seen to live."""

    def __init__(self, job_id: str, split: int) -> None:
        self._job_id, self._split = job_id, split
        self._began = self._told = time.monotonic()

    def tick(self, rows: int, source: str) -> None:
        now = time.monotonic()
        if now - self._told >= _LOG_EVERY_S:
            self._told = now
            rate = rows / (now - self._began)
            log.info(
                "job %s: split %d: %d rows, %.0f rows/s, in %r",
                self._job_id,
                self._split,
                rows,
                rate,
                source,
            )

    def end(self, rows: int, documents: int) -> None:
        took = max(1e-9, time.monotonic() - self._began)
        log.info(
            "job %s: split %d scanned: %d rows, %d documents, %.0f rows/s",
            self._job_id,
            self._split,
            rows,
            documents,
            rows / took,
        )
