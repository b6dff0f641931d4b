"""What the model answered: the answers, how often they agree with a label, and samples."""

from __future__ import annotations

from shardline.report.figures import Agreement, Report, Sample
from shardline.report.html import Html, join, tag
from shardline.report.parts import bars, card, facts, figure, section
from shardline.report.plots import plot_histogram
from shardline.status.words import count_text, share_text

_SHOWN_CHARACTERS = 4_000


def answers(report: Report) -> Html | None:
    """How often each answer was given."""
    if not report.answers:
        return None
    rows = [(a.value, a.rows) for a in report.answers]
    if report.answers_other:
        rows.append(("(other)", report.answers_other))
    return section("Answers", card(bars(rows, sum(n for _, n in rows))))


def vectors(report: Report) -> Html | None:
    """How long embeddings are, and their norms."""
    found = report.vectors
    if found is None:
        return None
    shown = [
        ("numbers in a vector", f"{found.dimension:,}"),
        ("mean norm", f"{found.mean_norm:.4g}"),
        ("norms", f"{found.least_norm:.4g} to {found.most_norm:.4g}"),
    ]
    has_plot = found.norms is not None and len(found.norms.counts) > 1
    return section(
        "Vectors",
        tag(
            "div",
            card(facts(shown)),
            figure(plot_histogram(found.norms, "norm", "results"), "", "Norm of a vector")
            if has_plot and found.norms
            else None,
            class_="grid",
        ),
    )


def agreement(report: Report) -> Html | None:
    """The share of equal rows and the confusion table."""
    found = report.agreement
    if found is None:
        return None
    said = (
        f"of {count_text(found.rows, 'row')} with a {found.column} have it as their output "
        f"({found.equal:,} equal; n = {found.rows:,})"
        if found.rows
        else f"No published row has a {found.column}."
    )
    head = join(
        tag("div", share_text(found.equal, found.rows), class_="share") if found.rows else None,
        tag("p", said, class_="muted"),
    )
    return section(
        f"Agreement with {found.column}",
        tag("div", card(head), card(_confusion(found)) if found.rows else None, class_="grid"),
    )


def _confusion(found: Agreement) -> Html:
    most = max((n for line in found.table for n in line), default=0) or 1
    body = []
    for label, line in zip(found.labels, found.table, strict=True):
        cells = [
            tag("td", f"{n:,}", style=_heat(n / most, label == output))
            for output, n in zip(found.outputs, line, strict=True)
        ]
        body.append(tag("tr", tag("th", label, scope="row"), cells))
    head = tag("tr", tag("th"), [tag("th", o, scope="col") for o in found.outputs])
    return tag(
        "div",
        tag("table", tag("thead", head), tag("tbody", body), class_="confusion"),
        tag("p", f"Lines: {found.column}. Columns: output.", class_="muted small"),
        class_="scroll",
    )


def _heat(share: float, is_equal: bool) -> str | None:
    if not share:
        return "color:var(--muted)"
    color = "results" if is_equal else "dead"
    return f"background:color-mix(in srgb,var(--{color}) {10 + 45 * share:.0f}%,transparent)"


def samples(report: Report) -> Html | None:
    """Documents and answers side by side."""
    if not report.samples:
        return None
    return section(
        "Samples",
        tag(
            "p",
            "Spread evenly over the lengths of the documents; always the same ones.",
            class_="muted",
        ),
        [card(_sample(s, report)) for s in report.samples],
    )


def _sample(sample: Sample, report: Report) -> Html:
    is_word = report.job.output_form == "choices"
    meta = [sample.document_id, f"{sample.source}, row {sample.row:,}"]
    if sample.prompt_tokens is not None and sample.completion_tokens is not None:
        meta.append(f"{sample.prompt_tokens:,} + {sample.completion_tokens:,} tokens")
    if sample.finish_reason and sample.finish_reason != "stop":
        meta.append(f"ended by {sample.finish_reason}")
    answer = [
        tag("div", _cut(sample.output), class_=f"answer{' word' if is_word else ''}", dir="auto")
    ]
    if sample.label is not None:
        equal = sample.label == sample.output
        answer.append(
            tag("p", f"label: {sample.label}", class_="small muted" if equal else "pill bad")
        )
    return tag(
        "div",
        tag("div", _cut(sample.text), class_="text", dir="auto"),
        tag("div", answer),
        tag("div", " · ".join(meta), class_="meta"),
        class_="sample",
    )


def _cut(text: str) -> str:
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return f"{text[:_SHOWN_CHARACTERS]}… ({len(text) - _SHOWN_CHARACTERS:,} more characters)"
