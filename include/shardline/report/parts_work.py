"""Where the workers' time went, and how long requests and answers were."""

from __future__ import annotations

from shardline.report.figures import Report, WorkFigures
from shardline.report.html import Html, tag
from shardline.report.parts import card, facts, figure, section, split_bar
from shardline.report.plots import plot_histogram, plot_spans
from shardline.status.words import (
    bytes_text,
    count_text,
    duration_text,
    rate_text,
    share_text,
)

_PARTS = (
    ("start", "left-out"),
    ("useful", "results"),
    ("tail", "duplicates"),
    ("stall", "dead"),
    ("restart", "rejected"),
    ("drain", "documents"),
    ("ahead", "results"),
)


def work(report: Report) -> Html | None:
    """Worker seconds, engine figures and the attempts on a time axis."""
    done = report.work
    if done is None or not done.attempts:
        return None
    total = sum(getattr(done.seconds, name) for name, _ in _PARTS)
    bar = split_bar(
        [(n, (s := getattr(done.seconds, n)), duration_text(s), color) for n, color in _PARTS]
    )
    return section(
        "Where the time went",
        tag(
            "div",
            card(
                tag("h3", f"{duration_text(total)} of workers in {_attempts(done)}"),
                bar if total else None,
                tag("div", facts(_speed(done), "facts"), style="margin-top:1.1rem"),
            ),
            figure(plot_spans(done.spans), _span_caption(done), "Attempts") if done.spans else None,
            class_="grid",
        ),
    )


def _attempts(done: WorkFigures) -> str:
    ends = ", ".join(f"{n:,} {end.replace('_', ' ')}" for end, n in sorted(done.by_end.items()))
    return f"{count_text(done.attempts, 'attempt')} ({ends})"


def _span_caption(done: WorkFigures) -> str:
    shards = len({s.shard for s in done.spans})
    shown = " of the 60 slowest shards" if shards > 60 else ""
    return (
        f"Each line is a shard{shown}, each bar an attempt. "
        "Green: done. Blue: drained. Amber: vanished. Red: failed."
    )


def _speed(done: WorkFigures) -> list[tuple[str, str]]:
    m = done.metrics
    shown: list[tuple[str, str]] = []
    if done.rows_per_s:
        shown.append(("rows/s", rate_text(done.rows_per_s)))
    if done.prompt_tokens_per_s:
        shown.append(("prompt tokens/s", rate_text(done.prompt_tokens_per_s)))
    if done.completion_tokens_per_s:
        shown.append(("answer tokens/s", rate_text(done.completion_tokens_per_s)))
    if m.mean_running is not None and m.max_num_seqs:
        share = share_text(m.mean_running, m.max_num_seqs)
        shown.append(("slots in use", f"{m.mean_running:.1f} of {m.max_num_seqs} ({share})"))
    if m.prefix_cache_queries:
        hits = m.prefix_cache_hits or 0
        shown.append(
            (
                "prefix cache",
                f"{share_text(hits, m.prefix_cache_queries)} hit, {hits:,} prompt tokens saved",
            )
        )
    if m.kv_cache_usage is not None:
        shown.append(("KV cache in use", share_text(m.kv_cache_usage, 1)))
    if m.preemptions is not None:
        shown.append(("preemptions", f"{m.preemptions:,}"))
    if done.rows_ahead:
        shown.append(("rows worked ahead", f"{done.rows_ahead:,}"))
    shown.append(("engine restarts", f"{done.engine_restarts:,}"))
    if m.peak_rss_mb is not None:
        shown.append(("peak memory", bytes_text(m.peak_rss_mb * 1e6)))
    if done.hosts > 1:
        shown.append(("machines", f"{done.hosts:,}"))
    return shown


def sizes(report: Report) -> Html | None:
    """Tokens, and histograms of what went in and what came out."""
    shards, tokens = report.shards, report.tokens
    shown: list[tuple[str, str]] = [
        (
            "input",
            f"{count_text(report.input.files, 'file')}, {bytes_text(report.input.size_bytes)}",
        )
    ]
    if shards:
        shown.append(("requests", f"{shards.requests:,} in {bytes_text(shards.size_bytes)}"))
    if tokens and tokens.results:
        shown += [
            (
                "prompt tokens",
                f"{tokens.prompt:,} ({tokens.prompt / tokens.results:,.0f} a request)",
            ),
        ]
    if tokens and tokens.finish_reasons:
        shown += [
            (
                "answer tokens",
                f"{tokens.completion:,} ({tokens.completion / tokens.results:,.1f} a result)",
            ),
            (
                "ended by",
                ", ".join(
                    f"{r} {share_text(n, tokens.results)}"
                    for r, n in sorted(tokens.finish_reasons.items(), key=lambda r: -r[1])
                ),
            ),
        ]
    plots = []
    if shards and shards.lengths and len(shards.lengths.counts) > 1:
        caption = (
            ""
            if shards.lengths.is_exact
            else "Spread evenly between the shortest and longest request of each shard."
        )
        plots.append(
            figure(
                plot_histogram(shards.lengths, "bytes", "documents"), caption, "Length of a request"
            )
        )
    if tokens and tokens.lengths and len(tokens.lengths.counts) > 1:
        plots.append(
            figure(plot_histogram(tokens.lengths, "tokens", "results"), "", "Length of an answer")
        )
    return section(
        "In and out",
        card(facts(shown, "facts")),
        tag("div", plots, class_="grid") if plots else None,
    )
