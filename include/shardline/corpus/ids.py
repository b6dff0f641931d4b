"""check_ids: what only the whole corpus can say. One id, one text; the sample; the carried types.

Two rows with one id and two texts meet in no bucket, so ids have a narrow shuffle of their own: per
document the 128-bit hashes of id and request, and its position. It ends before de-duplication, since
a rejected row is no one's original. The law of the rows begins here:
rows read = documents + rejected + left out.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from shardline.corpus.carried import published_type
from shardline.corpus.pieces import read_stream
from shardline.corpus.records import IdReport, SplitReport, id_partitions, read_scan_report
from shardline.corpus.spill import POSITION
from shardline.errors import CorpusError, LimitExceeded
from shardline.plan import Plan
from shardline.reasons import RejectedReason
from shardline.rows import RejectedRow
from shardline.store import Store

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger(__name__)

_HASHES = [("id_hi", ">u8"), ("id_lo", ">u8"), ("fp_hi", ">u8"), ("fp_lo", ">u8")]
_POSITION = [("input", "<u4"), ("row", "<u8")]
_KEY = [("key_hi", ">u8"), ("key_lo", ">u8")]
_READERS = 16
_SHOWN = 5

Conflict = tuple[tuple[int, int], tuple[int, int]]
"""Positions of a row that is rejected, and of the first row with its id."""


def check_ids(store: Store, plan: Plan) -> IdReport:
    """Reject id conflicts, choose the sample, fix the types of carried columns; put the report.

    Raises:
        LimitExceeded: more rows are rejected than limits.max_rejected allows.
        CorpusError: no row is a document.
        JobNotReady: a split is not scanned.
    """
    if (found := store.read_or_none(plan.layout.id_report)) is not None:
        return msgspec.json.decode(found, type=IdReport)
    splits = [read_scan_report(store, plan, n) for n in range(len(plan.splits))]
    smallest = _Smallest(plan)
    conflicts = sorted(_find_conflicts(store, plan, splits, smallest))
    _put_conflicts(store, plan, conflicts)
    report = _sum_up(plan, splits, len(conflicts), smallest)
    check_limits(store, plan, report)
    store.put_same(plan.layout.id_report, msgspec.json.encode(report))
    log.info(
        "job %s: %d rows read, %d documents, %d rejected, %d left out",
        plan.job_id,
        report.rows_read,
        report.documents,
        report.rejected,
        report.left_out,
    )
    return report


def _find_conflicts(
    store: Store, plan: Plan, splits: list[SplitReport], smallest: _Smallest
) -> Iterator[Conflict]:
    """Every id conflict; on the way, the sample keys of all other documents."""
    job = plan.job_file
    if job.corpus.id is None and job.corpus.sample is None:
        return
    for partition in range(id_partitions(plan)):
        content = _read_partition(store, plan, splits, partition)
        if job.corpus.id is None:
            smallest.add(_as_rows(content, _KEY))
            continue
        rows = _as_rows(content, [*_HASHES, *_POSITION, *(_KEY if job.corpus.sample else [])])
        rows, first, is_conflict = mark_conflicts(rows)
        yield from zip(_positions(rows[is_conflict]), _positions(first[is_conflict]), strict=True)
        if job.corpus.sample:
            smallest.add(rows[~is_conflict])


def _read_partition(store: Store, plan: Plan, splits: list[SplitReport], partition: int) -> bytes:
    def read(split: SplitReport) -> bytes:
        start, end = split.id_offsets[partition : partition + 2]
        return read_stream(store, partial(plan.layout.ids, split.split), start, end)

    with ThreadPoolExecutor(_READERS) as readers:
        return b"".join(readers.map(read, splits))


def _as_rows(content: bytes, fields: list[tuple[str, str]]) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.frombuffer(content, np.dtype(fields))


def mark_conflicts(
    rows: np.ndarray[Any, Any],
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(rows sorted by id and position, for each the first row with its id, whether it conflicts)."""
    import numpy as np

    rows = rows[np.lexsort((rows["row"], rows["input"], rows["id_lo"], rows["id_hi"]))]
    is_new = np.ones(len(rows), bool)
    is_new[1:] = (rows["id_hi"][1:] != rows["id_hi"][:-1]) | (
        rows["id_lo"][1:] != rows["id_lo"][:-1]
    )
    first = rows[np.maximum.accumulate(np.where(is_new, np.arange(len(rows)), 0))]
    is_conflict = (rows["fp_hi"] != first["fp_hi"]) | (rows["fp_lo"] != first["fp_lo"])
    return rows, first, is_conflict


def _positions(rows: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    return list(zip(rows["input"].tolist(), rows["row"].tolist(), strict=True))


class _Smallest:
    """The n smallest sample keys of all that were added, in bounded memory."""

    def __init__(self, plan: Plan) -> None:
        sample = plan.job_file.corpus.sample
        self._n = sample.rows if sample else 0
        self._keys: list[np.ndarray[Any, Any]] = []
        self._held = 0

    def add(self, rows: np.ndarray[Any, Any]) -> None:
        self._keys.append(rows[["key_hi", "key_lo"]])
        self._held += len(rows)
        if self._held > 2 * self._n + 1_000_000:
            self._cut()

    def _cut(self) -> None:
        import numpy as np

        keys = np.concatenate(self._keys)
        order = np.lexsort((keys["key_lo"], keys["key_hi"]))[: self._n]
        self._keys, self._held = [keys[order]], len(order)

    def threshold(self, documents: int) -> str | None:
        """The largest key that is taken of so many documents, as hex; None when all are."""
        if documents <= self._n or not self._n:
            return None
        self._cut()
        high, low = self._keys[0][-1].tolist()
        return f"{high:016x}{low:016x}"


def _put_conflicts(store: Store, plan: Plan, conflicts: list[Conflict]) -> None:
    if conflicts:
        content = b"".join(POSITION.pack(*position) for position, _ in conflicts)
        store.put_same(plan.layout.conflicts, content)
    lines = []
    for (number, row), (first_number, first_row) in conflicts:
        detail = f"first in {plan.inputs[first_number].source}, row {first_row}"
        source = plan.inputs[number].source
        lines.append(
            msgspec.json.encode(RejectedRow(source, row, RejectedReason.ID_CONFLICT, detail))
        )
    store.put_same(plan.layout.rejected_ids, b"".join(line + b"\n" for line in lines))


def _sum_up(plan: Plan, splits: list[SplitReport], conflicts: int, smallest: _Smallest) -> IdReport:
    rejected: Counter[str] = Counter()
    for split in splits:
        rejected.update(split.rejected)
    if conflicts:
        rejected[RejectedReason.ID_CONFLICT.value] += conflicts
    valid = sum(split.documents for split in splits) - conflicts
    sample = plan.job_file.corpus.sample
    documents = min(valid, sample.rows) if sample else valid
    return IdReport(
        rows_read=sum(split.rows_read for split in splits),
        documents=documents,
        left_out=valid - documents,
        conflicts=conflicts,
        rejected_by_reason=dict(sorted(rejected.items())),
        carry_types={
            name: published_type(kind for split in splits for kind in split.kinds[name])
            for name in plan.job_file.corpus.carry
        },
        sample_threshold=smallest.threshold(valid),
    )


def check_limits(store: Store, plan: Plan, report: IdReport) -> None:
    """Refuse a corpus with too many rejected rows, or without a document."""
    allowed = plan.job_file.limits.max_rejected
    reasons = ", ".join(f"{reason} {n}" for reason, n in report.rejected_by_reason.items())
    if not report.documents:
        raise CorpusError(
            f"job {plan.job_id}: none of {report.rows_read} rows is a document"
            + (f" ({reasons}; the first: {_first_rejected(store, plan)})" if reasons else "")
            + _missing_columns(plan, report)
        )
    if report.rejected > allowed * report.rows_read:
        share = report.rejected / report.rows_read
        raise LimitExceeded(
            f"job {plan.job_id}: {report.rejected} of {report.rows_read} rows read are rejected"
            f" ({share:.2%}), limits.max_rejected allows {allowed:.2%}: {reasons};"
            f" the first: {_first_rejected(store, plan)};"
            f" all: {store.uri_of(plan.layout.rejected(0).rpartition('/')[0])}/"
        )


def _missing_columns(plan: Plan, report: IdReport) -> str:
    """Which fields of the job file to look at when every row lacks what they name."""
    job, found = plan.job_file, report.rejected_by_reason
    hints = []
    if RejectedReason.NO_ID in found:
        hints.append(f"corpus.id names {job.corpus.id!r}")
    if RejectedReason.NO_TEXT in found:
        names = ", ".join(repr(column.name) for column in job.text_columns)
        hints.append(f"`{job.form.asks}` names {names}")
    return f"; does the corpus have these columns: {'; '.join(hints)}?" if hints else ""


def _first_rejected(store: Store, plan: Plan) -> str:
    names = [plan.layout.rejected(n) for n in range(len(plan.splits))]
    lines = (
        line
        for name in [*names, plan.layout.rejected_ids]
        for line in store.read(name).split(b"\n")
    )
    rows = (msgspec.json.decode(line, type=RejectedRow) for line in lines if line)
    shown = (f"{r.source} row {r.row} ({r.reason})" for r in itertools.islice(rows, _SHOWN))
    return ", ".join(shown)
