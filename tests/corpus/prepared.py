"""Runs the prepare stages of one job, and says what became of every row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from shardline.corpus.ids import check_ids
from shardline.corpus.plan_job import plan_job
from shardline.corpus.records import IdReport
from shardline.corpus.scan import scan_corpus
from shardline.corpus.spill import SpillReader, SpillRecord
from shardline.layout import JobLayout
from shardline.plan import Plan
from shardline.rows import RejectedRow
from shardline.settings import Settings
from shardline.store import Store
from tests.factories import make_job, make_store

NOW = datetime(2026, 11, 28, tzinfo=UTC)


def make_plan(folder: Path, **overrides: Any) -> Plan:
    """The plan of a job over `folder/corpus`, with these overrides of the job and of the plan."""
    changes = {k: overrides.pop(k) for k in ("splits", "bounds") if k in overrides}
    job = make_job(folder, **overrides)
    store = make_store(folder)
    plan = plan_job(job, store=store, settings=Settings(), partition=None, now=NOW)
    if changes:
        job_id = f"{plan.job_id}-{abs(hash(str(changes))):x}"
        plan = msgspec.structs.replace(plan, job_id=job_id, **changes)
    return plan


@dataclass
class Prepared:
    """A job after check_ids."""

    store: Store
    plan: Plan
    report: IdReport

    @property
    def layout(self) -> JobLayout:
        return self.plan.layout

    def documents(self) -> list[SpillRecord]:
        reader = SpillReader(self.store, self.plan, 0, self.plan.buckets)
        return [record for n in range(self.plan.buckets) for record in reader.bucket(n)]

    def rejected(self) -> list[tuple[str, int, str]]:
        return sorted((row.source, row.row, row.reason) for row in self._rejected())

    def _rejected(self) -> Iterator[RejectedRow]:
        names = [self.layout.rejected(n) for n in range(len(self.plan.splits))]
        for name in [*names, self.layout.rejected_ids]:
            for line in self.store.read(name).splitlines():
                yield msgspec.json.decode(line, type=RejectedRow)

    def outcome(self) -> tuple[Any, ...]:
        """What must not depend on how the work was split: documents with the first of each
        request, rejected rows, the report."""
        documents = sorted(self.documents(), key=lambda d: d.position)
        originals: dict[bytes, str] = {}
        rows = []
        for d in documents:
            original = originals.setdefault(d.fingerprint, d.document_id)
            rows.append((d.source, d.row, d.document_id, d.carry, d.length, original))
        return rows, self.rejected(), self.report


def prepare(folder: Path, **overrides: Any) -> Prepared:
    """Plan, scan and check a job over `folder/corpus`."""
    store, plan = make_store(folder), make_plan(folder, **overrides)
    for split in range(len(plan.splits)):
        scan_corpus(store, plan, split)
    return Prepared(store, plan, check_ids(store, plan))
