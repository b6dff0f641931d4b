"""report.html from the figures: one file that asks nobody for anything.

Sections are left out when their figures are not known; a zero is only shown when it was counted.
"""

from __future__ import annotations

import yaml

from shardline.report.figures import Report
from shardline.report.html import Html, join, raw, tag
from shardline.report.parts import card, figure, section
from shardline.report.parts_problems import problems
from shardline.report.parts_results import agreement, answers, samples, vectors
from shardline.report.parts_work import sizes, work
from shardline.report.plots import plot_flow
from shardline.report.style import CSS
from shardline.status.words import bytes_text, count_text, duration_text, rate_text

_PILL = {"published": "good", "superseded": "warn", "merged": "warn"}
_READ = """import duckdb, polars
from deltalake import DeltaTable

table = DeltaTable("TABLE")
files = table.file_uris(file_pruning_predicate=[("dt", "=", "DATE")])
duckdb.sql(f"SELECT output, count(*) FROM read_parquet({files}) GROUP BY ALL")
polars.read_parquet(files)
table.to_pandas(filters=[("dt", "=", "DATE")])"""
_COUNTS = "SELECT output, count(*) FROM read_parquet({files}) GROUP BY ALL"
_ROWS = "SELECT document_id, output FROM read_parquet({files})"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render_report(report: Report) -> str:
    """The whole page. Depends on the report only, so equal figures give equal bytes."""
    title = f"{report.job.name} · Shardline report"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="robots", content="noindex"),
        tag("title", title),
        tag("style", raw(CSS)),
    )
    body = tag(
        "main",
        _header(report),
        _law(report),
        answers(report),
        agreement(report),
        vectors(report),
        problems(report),
        samples(report),
        work(report),
        sizes(report),
        _dataset(report),
        _job_file(report),
        _footer(report),
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", body), lang="en")


def _header(report: Report) -> Html:
    job, work_done = report.job, report.work
    facts: list[tuple[str, str | Html]] = [
        ("owner", job.owner),
        ("partition", job.partition or "none"),
        ("ran on", f"{job.run_on}, {job.engine}"),
        ("planned", _moment(job.planned_at)),
        ("finished", _moment(job.finished_at) if job.finished_at else "not yet"),
        ("time worked", duration_text(job.wall_s) if job.wall_s is not None else "–"),
    ]
    if work_done and work_done.rows_per_s:
        facts.append(("speed", f"{rate_text(work_done.rows_per_s)} rows/s"))
    if report.shards:
        facts.append(("shards", f"{report.shards.done:,} of {report.shards.shards:,} done"))
    wide = [
        ("model", join(job.model, " ", tag("code", job.model_commit[:12], title=job.model_commit))),
        ("job", tag("code", job.job_id)),
        ("table", tag("code", job.table_uri)),
    ]
    return join(
        tag(
            "header",
            tag("h1", job.name),
            tag("span", report.state, class_=f"pill {_PILL.get(report.state, 'bad')}"),
            class_="top",
        ),
        tag("p", report.headline, class_="headline"),
        tag("p", report.next_step, class_="muted") if report.next_step else None,
        tag(
            "div",
            tag(
                "dl",
                [tag("div", tag("dt", k), tag("dd", v)) for k, v in facts],
                [tag("div", tag("dt", k), tag("dd", v), class_="wide") for k, v in wide],
                class_="facts",
            ),
            class_="card",
            style="margin-top:1.2rem",
        ),
    )


def _law(report: Report) -> Html | None:
    if report.law is None:
        return None
    law, holds = report.law, not report.law_differences
    verdict = tag(
        "span",
        "the law holds" if holds else "the law is broken",
        class_=f"pill {'good' if holds else 'bad'}",
    )
    return section(
        "Where every row went",
        tag(
            "div",
            card(
                tag("p", verdict),
                _equation(
                    ("rows read", law.rows_read, None),
                    ("documents", law.documents, "documents"),
                    ("rejected", law.rejected, "rejected"),
                    ("left out", law.left_out, "left-out"),
                ),
                _equation(
                    ("documents", law.documents, "documents"),
                    ("results", law.results, "results"),
                    ("duplicates", law.duplicates, "duplicates"),
                    ("dead letters", law.dead_letters, "dead"),
                ),
                [tag("p", d, class_="bad") for d in report.law_differences],
                tag(
                    "p",
                    "Counted from the files themselves, never from a counter beside them.",
                    class_="muted small",
                ),
            ),
            figure(plot_flow(law)) if law.rows_read and holds else None,
            class_="grid",
        ),
    )


def _equation(total: tuple[str, int, str | None], *terms: tuple[str, int, str | None]) -> Html:
    parts = [_term(*total)]
    for i, term in enumerate(terms):
        sign = tag("span", "+" if i else "=", class_="op")
        parts.append(tag("span", sign, _term(*term), class_="step"))
    return tag("div", parts, class_="law")


def _term(name: str, count: int, color: str | None) -> Html:
    return tag(
        "span",
        tag("b", f"{count:,}"),
        tag("span", name),
        class_="term" if color else "term plain",
        style=f"--c:var(--{color})" if color else None,
    )


def _dataset(report: Report) -> Html | None:
    done = report.published
    if done is None:
        return None
    job = report.job
    partition = f"dt={job.partition or 'all'}"
    said = f"{count_text(done.rows, 'row')} in {count_text(done.files, 'file')}, {bytes_text(done.size_bytes)}"
    where = (
        f"Published in partition {partition} of the Delta table {job.table_uri}."
        if done.is_published
        else "Merged, and not published: no reader of the table sees these files yet."
    )
    python = _READ.replace("TABLE", job.table_uri).replace("DATE", job.partition or "all")
    if report.vectors:
        python = python.replace(_COUNTS, _ROWS)
    shell = f"shardline files {job.table} --partition {job.partition or 'all'}     # the files, one URI a line"
    return section(
        "The dataset",
        card(
            tag("p", said + ". ", where),
            tag("pre", python),
            tag("pre", shell),
            tag(
                "p",
                "A glob over the table's folder also reads files of earlier versions: read it as a Delta "
                "table, or through the list of files. A row whose ",
                tag("code", "duplicate_of"),
                " is set has the answer of that document.",
                class_="muted small",
            ),
            _checks(report),
        ),
    )


def _checks(report: Report) -> Html | None:
    gate = report.validation
    if gate is None:
        return None
    word = "passed" if gate.success else "failed"
    pill = tag("span", f"validation {word}", class_=f"pill {'good' if gate.success else 'bad'}")
    rules = tag(
        "details",
        tag("summary", f"{count_text(len(gate.rules), 'rule')} over every file and row"),
        tag("ul", [tag("li", rule) for rule in gate.rules], class_="plain small"),
    )
    return join(
        tag("p", pill, " ", tag("a", "Data Docs", href=gate.data_docs)),
        rules if gate.rules else None,
    )


def _job_file(report: Report) -> Html:
    text = yaml.safe_dump(report.job.job_file, sort_keys=False, allow_unicode=True, width=100)
    return section(
        "The job file",
        card(
            tag("details", tag("summary", "As it ran, with every file read in"), tag("pre", text))
        ),
    )


def _footer(report: Report) -> Html:
    return tag(
        "footer",
        f"Made {_moment(report.made_at)} by Shardline {report.job.shardline_version}. All figures: ",
        tag("a", "report.json", href="report.json"),
        ".",
    )


def _moment(iso: str) -> str:
    """`2026-11-28 12:00 UTC` from an ISO moment in UTC."""
    return iso[:16].replace("T", " ") + " UTC"
