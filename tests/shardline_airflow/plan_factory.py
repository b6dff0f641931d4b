"""A plan as the tests of this room need it: the stages that read more of it are not run here."""

from __future__ import annotations

from pathlib import Path

from shardline.plan import Plan
from tests.factories import make_job


def make_plan(folder: Path) -> Plan:
    return Plan(
        job_id="test-job-all-00000000",
        job=make_job(folder).model_dump(mode="json"),
        partition=None,
        planned_at="2026-11-28T00:00:00.000+00:00",
        model_commit="stub",
        inputs=[],
        skipped=[],
        splits=[(0, 1)],
        bounds=[],
        bucket_sets=[(0, 1)],
        version="0.1.0",
    )
