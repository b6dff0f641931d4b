"""What went wrong: attempts, dead letters, rejected rows, skipped files. Never with their text."""

from __future__ import annotations

from shardline.reasons import SkippedReason
from shardline.report.figures import DeadFigures, RejectedFigures, Report, sentence_of
from shardline.report.html import Html, join, tag
from shardline.report.parts import card, section
from shardline.status.words import count_text


def problems(report: Report) -> Html | None:
    """The section, or None when nothing went wrong."""
    shown = [*_troubles(report), *_dead(report), *_rejected(report), *_skipped(report)]
    if not shown:
        return None
    return section("What went wrong", tag("div", shown, class_="grid"))


def _troubles(report: Report) -> list[Html]:
    """What workers said when they ended badly; their shards went on in other attempts, or died."""
    found = report.work.troubles if report.work else []
    if not found:
        return []
    lines = [
        join(
            tag("p", tag("b", f"{t.attempts:,} "), tag("code", t.end), " ", t.message),
            tag("p", tag("code", f"logs/{t.shard}/{t.attempt}.log"), class_="small muted"),
        )
        for t in found
    ]
    return [card(tag("h3", "Attempts that ended badly"), lines)]


def _dead(report: Report) -> list[Html]:
    if not report.dead:
        return []
    total = sum(d.count for d in report.dead)
    replay = sum(d.count for d in report.dead if d.can_replay)
    said = f"{replay:,} of them may do better when they run again." if replay else ""
    return [
        card(
            tag("h3", f"{count_text(total, 'dead letter')}"),
            tag("p", said, class_="muted small") if said else None,
            [_dead_reason(d) for d in report.dead],
        )
    ]


def _dead_reason(found: DeadFigures) -> Html:
    examples = [
        tag("li", tag("code", e.document_id, title=f"{e.source}, row {e.row}"), f": {e.message}")
        for e in found.examples
    ]
    return _reason(found.reason, found.count, found.sentence, examples)


def _rejected(report: Report) -> list[Html]:
    if not report.rejected:
        return []
    total = sum(r.count for r in report.rejected)
    return [
        card(
            tag("h3", count_text(total, "rejected row")),
            [_rejected_reason(r) for r in report.rejected],
        )
    ]


def _rejected_reason(found: RejectedFigures) -> Html:
    examples = [
        tag("li", tag("code", e.source), f", row {e.row:,}", f": {e.detail}" if e.detail else "")
        for e in found.examples
    ]
    return _reason(found.reason, found.count, found.sentence, examples)


def _skipped(report: Report) -> list[Html]:
    if not report.input.skipped:
        return []
    total = sum(report.input.skipped.values())
    reasons = [
        _reason(reason, n, sentence_of(SkippedReason, reason), [])
        for reason, n in sorted(report.input.skipped.items())
    ]
    names = tag(
        "ul", [tag("li", tag("code", s)) for s in report.input.skipped_examples], class_="plain"
    )
    return [card(tag("h3", count_text(total, "skipped file")), reasons, names)]


def _reason(reason: str, count: int, sentence: str, examples: list[Html]) -> Html:
    return join(
        tag("p", tag("b", f"{count:,} "), tag("code", reason), " ", sentence),
        tag(
            "details",
            tag("summary", "examples", class_="muted small"),
            tag("ul", examples, class_="plain small"),
        )
        if examples
        else None,
    )
