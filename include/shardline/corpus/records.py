"""What the prepare stages tell each other: the reports of scan_corpus and check_ids."""

from __future__ import annotations

import msgspec

from shardline.errors import JobNotReady
from shardline.plan import Plan
from shardline.store import Store


class FileOutcome(msgspec.Struct, frozen=True):
    """What became of one file: read, or an error with its reason (FileReason)."""

    source: str
    outcome: str
    rows: int = 0
    documents: int = 0
    rejected: int = 0
    reason: str = ""
    detail: str = ""


class SplitReport(msgspec.Struct, frozen=True):
    """`scan/{split}.json`: what one scan task read, and where its spill holds each bucket."""

    split: int
    rows_read: int
    documents: int
    """Valid rows, before id conflicts and sampling."""
    rejected: dict[str, int]
    files: list[FileOutcome]
    kinds: dict[str, list[str]]
    """Carried column → the kinds of its values (carried.kind_of), without null."""
    offsets: list[int]
    """Offset of each bucket in the spill's stream, and its size."""
    id_offsets: list[int]
    """Offset of each partition in the stream of ids, and its size; [0] where none was written."""


class IdReport(msgspec.Struct, frozen=True):
    """`scan/check_ids.json`: the corpus as a whole. rows_read = documents + rejected + left_out."""

    rows_read: int
    documents: int
    left_out: int
    conflicts: int
    rejected_by_reason: dict[str, int]
    carry_types: dict[str, str]
    """Carried column → string, int64, double or bool."""
    sample_threshold: str | None
    """Largest sample key (hex) that is taken; None when all documents are."""

    @property
    def rejected(self) -> int:
        return sum(self.rejected_by_reason.values())


_ID_PARTITION_BYTES = 256 << 20
_MAX_ID_PARTITIONS = 256


def id_partitions(plan: Plan) -> int:
    """Into how many ranges of their hash ids are cut, so that one of all splits fits in memory."""
    total = sum(file.size_bytes for file in plan.inputs)
    return min(_MAX_ID_PARTITIONS, 1 + total // _ID_PARTITION_BYTES)


def read_scan_report(store: Store, plan: Plan, split: int) -> SplitReport:
    """The report of a split.

    Raises:
        JobNotReady: it was not scanned.
    """
    found = store.read_or_none(plan.whole.scan_report(split))
    if found is None:
        raise JobNotReady(f"job {plan.job_id}: split {split} is not scanned yet")
    return msgspec.json.decode(found, type=SplitReport)


def read_id_report(store: Store, plan: Plan) -> IdReport:
    """The report over all splits.

    Raises:
        JobNotReady: check_ids has not ended.
    """
    found = store.read_or_none(plan.whole.id_report)
    if found is None:
        raise JobNotReady(f"job {plan.job_id}: check_ids has not ended yet")
    return msgspec.json.decode(found, type=IdReport)
