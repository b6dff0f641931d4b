"""validate_results: the gate before publishing. Great Expectations judges counts of the merged files.

Counting is DuckDB's work, one row per file; judging and the pages for people are Great
Expectations'. So a billion rows cost one scan, and the gate itself a fraction of a second.
"""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shardline.errors import ValidationFailed
from shardline.layout import published
from shardline.results.aggregates import Aggregates
from shardline.results.chain import Chain
from shardline.results.gate import Broken, Rule, judge
from shardline.results.merge import MergedFile, MergeReport, read_merge_report
from shardline.results.schema import check_schema
from shardline.results.settle import read_settlement

if TYPE_CHECKING:
    from shardline.job import JobFile
    from shardline.plan import Plan
    from shardline.store import Store

log = logging.getLogger(__name__)

_SHOWN = 3
_FILE_RULES = (
    Rule("rows_differ", "a file holds as many rows as merge counted"),
    Rule("schema_differs", "a file has the planned columns and types"),
    Rule("null_keys", "document_id, source, row and fingerprint are never null"),
    Rule("null_outputs", "output is never null"),
    Rule("foreign_outputs", "output is one of the choices"),
    Rule("odd_finishes", "finish_reason is one that a whole answer has"),
    Rule("negative_tokens", "token counts are not negative"),
    Rule("foreign_rows", "all rows are of this job, or of the jobs that it replays"),
)
_VECTORS = Rule("odd_vectors", "vectors have one length, and every number in them is finite")


class Validation(msgspec.Struct, frozen=True):
    """`validation.json`: that the gate was passed, by which rules, over how many files and rows."""

    job_id: str
    rules: list[str]
    files: int
    rows: int


def validate_results(store: Store, plan: Plan) -> Validation:
    """Check the merged files, write Data Docs, and let the job pass or not.

    Raises:
        ValidationFailed: naming each rule that does not hold, what was seen, and where.
        JobNotReady: the job is not merged.
    """
    if (done := store.read_or_none(plan.layout.validation)) is not None:
        return msgspec.json.decode(done, type=Validation)
    report = read_merge_report(store, plan)
    with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
        frames = _frames(store, plan, report, Path(scratch))
        broken, pages = judge(frames, Path(scratch))
        _keep_pages(store, plan, pages)
    if broken:
        raise ValidationFailed(f"job {plan.job_id}: {_say(store, plan, report, broken)}")
    validation = Validation(
        job_id=plan.job_id,
        rules=[rule.says for _, rules in frames.values() for rule in rules],
        files=len(report.files),
        rows=report.rows,
    )
    store.put_same(plan.layout.validation, msgspec.json.encode(validation))
    return validation


def _frames(
    store: Store, plan: Plan, report: MergeReport, scratch: Path
) -> dict[str, tuple[dict[str, list[Any]], tuple[Rule, ...]]]:
    """The frame of files (absent for a job without rows) and the frame of the job, with rules."""
    rows, repeats = _count(store, plan, report.files, scratch)
    job = _job_frame(store, plan, report, rows) | repeats
    frames = {"job": ({name: [value] for name, value in job.items()}, _job_rules(plan.job_file))}
    if rows:
        files = {name: [row[name] for row in rows] for name in rows[0]}
        frames["files"] = (files, _file_rules(plan.job_file))
    return frames


def _file_rules(job: JobFile) -> tuple[Rule, ...]:
    if job.kind != "embedding":
        return _FILE_RULES
    of_text = ("foreign_outputs", "odd_finishes")
    return (*(rule for rule in _FILE_RULES if rule.column not in of_text), _VECTORS)


def _job_rules(job: JobFile) -> tuple[Rule, ...]:
    return (
        Rule("law_differences", "the law holds, counted from the files"),
        Rule("rows_differ", "all results, and all duplicates of one, are published"),
        Rule("repeated_ids", "document ids are unique but for duplicates"),
        Rule("repeated_places", "no row of the corpus is published twice"),
        Rule("dead_share", "dead letters stay under limits.max_dead", most=job.limits.max_dead),
    )


def _job_frame(
    store: Store, plan: Plan, report: MergeReport, rows: list[dict[str, Any]]
) -> dict[str, float]:
    counted = sum(row["rows"] for row in rows)
    return {
        "rows": counted,
        "law_differences": len(report.law.differences()),
        "rows_differ": abs(counted - (report.law.documents - report.dead_documents)),
        "dead_share": read_settlement(store, plan).dead_share,
        "lost_values": report.lost_values,
    }


def _count(
    store: Store, plan: Plan, files: list[MergedFile], scratch: Path
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    job, schema = plan.job_file, check_schema(store, plan)
    chain = [link.plan for link in Chain(store, plan).links]
    with Aggregates(
        scratch,
        job_ids=[link.job_id for link in chain],
        choices=None if job.output.choices is None else list(job.output.choices),
        finishes=_finishes(chain),
        # an answer in JSON may be null by its schema
        output_required=job.output.json_schema is None,
    ) as aggregates:
        rows = []
        for file in files:
            counts = _with_file(store, plan, file, lambda path: aggregates.add(path, schema))
            differ = abs(counts["rows"] - file.rows)
            rows.append({"file": file.path, "rows_differ": differ, **counts})
        return rows, _repeats(store, plan, files, aggregates)


def _finishes(chain: list[Plan]) -> list[str]:
    """How a whole answer may end; a replay's rows may have come from a job that kept cut ones."""
    if chain[0].job_file.kind == "embedding":
        return [""]  # a vector has no end that could be cut
    keeps_cut = any(plan.job_file.output.truncated == "keep" for plan in chain)
    return ["stop", "length"] if keeps_cut else ["stop"]


def _repeats(
    store: Store, plan: Plan, files: list[MergedFile], aggregates: Aggregates
) -> dict[str, int]:
    """How many keys occur twice; a second look tells repeats from mere collisions of hashes."""
    ids, places = aggregates.suspects("id"), aggregates.suspects("place")
    if not ids and not places:
        return {"repeated_ids": 0, "repeated_places": 0}
    seen_ids: Counter[str] = Counter()
    seen_places: Counter[tuple[str, int]] = Counter()
    for file in files:
        found = _with_file(
            store, plan, file, lambda path: list(aggregates.suspect_rows(path, ids, places))
        )
        seen_ids.update(document_id for document_id, _ in found if document_id is not None)
        seen_places.update(place for _, place in found)
    return {
        "repeated_ids": _repeated(seen_ids.values()),
        "repeated_places": _repeated(seen_places.values()),
    }


def _repeated(counts: Iterable[int]) -> int:
    return sum(n > 1 for n in counts)


def _with_file(store: Store, plan: Plan, file: MergedFile, use: Any) -> Any:
    """Call `use` with the file on disk; a copy from a remote store goes away at once."""
    with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
        return use(store.fetch(f"{published(plan.job_file.table)}/{file.path}", Path(scratch)))


def _keep_pages(store: Store, plan: Plan, pages: Path) -> None:
    for page in sorted(path for path in pages.rglob("*") if path.is_file()):
        name = page.relative_to(pages).as_posix()
        store.write(plan.layout.data_docs + name, page)


def _say(store: Store, plan: Plan, report: MergeReport, broken: list[Broken]) -> str:
    paths = [file.path for file in report.files]
    said = []
    for rule, observed, rows in broken:
        seen = ", ".join(f"{value:g}" for value in observed[:_SHOWN])
        where = ""
        if rule in (*_FILE_RULES, _VECTORS):
            named = ", ".join(paths[row] for row in rows[:_SHOWN])
            where = f" in {len(rows)} of {len(paths)} files: {named}"
        said.append(f"expected that {rule.says}; {rule.column} = {seen}{where}")
    return "; ".join(said) + f"; see {store.uri_of(plan.layout.data_docs)}index.html"
