"""report_job: write report.json and report.html from whatever the job has left in the store.

Both are written, not put: a report may be made again at any time, and a job that stopped half way
has one that says how far it came.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from shardline.report.collect import collect_report
from shardline.report.page import render_report

if TYPE_CHECKING:
    from shardline.plan import Plan
    from shardline.report.figures import Report
    from shardline.store import Store

log = logging.getLogger(__name__)


def report_job(store: Store, plan: Plan, now: datetime | None = None) -> Report:
    """Collect every figure, write both files, and return the figures."""
    report = collect_report(store, plan, now or datetime.now(UTC))
    store.write(plan.layout.report_json, msgspec.json.format(msgspec.json.encode(report)))
    store.write(plan.layout.report_html, render_report(report).encode())
    log.info("job %s: report written to %s", plan.job_id, store.uri_of(plan.layout.report_html))
    return report
