"""Plots as inline SVG, drawn by matplotlib without a display.

Colours are written as marks and replaced by the page's CSS variables, so one drawing is right in
light and in dark. Text stays text: it is small, sharp and can be found.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from shardline.report.figures import Histogram, Span
from shardline.report.html import Html, raw
from shardline.rows import Law
from shardline.status.words import bytes_text, duration_text

_MARKS = {
    "ink": "#010102",
    "muted": "#010103",
    "line": "#010104",
    "documents": "#010105",
    "results": "#010106",
    "duplicates": "#010107",
    "dead": "#010108",
    "rejected": "#010109",
    "left-out": "#01010a",
}
_STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _MARKS["ink"],
    "axes.edgecolor": _MARKS["line"],
    "axes.labelcolor": _MARKS["muted"],
    "xtick.color": _MARKS["muted"],
    "ytick.color": _MARKS["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "grid.color": _MARKS["line"],
    "grid.linewidth": 0.6,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
_WIDTH_IN = 5.0
_NODE, _GAP, _THIN, _LETTER = 0.02, 0.12, 0.007, 0.0165
_MAX_SPANS = 60
_NOISE = (
    re.compile(r"<metadata>.*?</metadata>", re.DOTALL),
    re.compile(r"<style.*?</style>", re.DOTALL),  # would hold for the whole page
    re.compile(r" font-family: [^;\"]*;"),
    re.compile(r' transform="rotate\(-?0 [^"]*"'),
)
_SPAN_MARKS = {"done": "results", "drained": "documents", "vanished": "rejected"}


def plot_flow(law: Law) -> Html:
    """Where every row went: rows read, then documents, then all ends, as bands of their width."""
    read = max(law.rows_read, 1)
    ends = [
        ("results", "results", law.results),
        ("duplicates", "duplicates", law.duplicates),
        ("dead letters", "dead", law.dead_letters),
        ("left out", "left-out", law.left_out),
        ("rejected", "rejected", law.rejected),
    ]
    ends = [end for end in ends if end[2]]
    figure, axes = _figure(2.5)
    right = 1 - _LETTER * max((len(f"{n:,} {name}") for name, _, n in ends), default=0)
    middle, documents = right * 0.47, law.documents / read
    _node(axes, 0, 1.0, 1.0, "ink")
    _label(axes, 0, 1.04, f"{law.rows_read:,} rows read", "left")
    if law.documents:
        _band(axes, (_NODE, 1.0), (middle, 1.0), documents, "documents")
        _node(axes, middle, 1.0, documents, "documents")
        # a thin band's name must not run into that of the rows
        middle_y = min(1 - documents / 2, 0.94)
        _label(axes, _NODE + 0.015, middle_y, f"{law.documents:,} documents", "left", "center")
    source = top = 1.0
    for name, mark, count in ends:
        height = count / read
        is_document = mark in ("results", "duplicates", "dead")
        start = middle + _NODE if is_document else _NODE
        _band(axes, (start, source), (right, top), height, mark)
        _node(axes, right, top, height, mark)
        _label(axes, right + _NODE + 0.012, top - height / 2, f"{count:,} {name}", "left", "center")
        source, top = source - height, top - max(height, 0.02) - _GAP
    axes.set(xlim=(0, 1), ylim=(min(0.0, top + _GAP) - 0.05, 1.18))
    axes.axis("off")
    return _svg(figure, "flow", "Where every row went")


def plot_histogram(histogram: Histogram, unit: str, mark: str) -> Html:
    """A histogram over a logarithmic or linear axis, as its edges are."""
    figure, axes = _figure(1.9)
    widths = [b - a for a, b in zip(histogram.edges, histogram.edges[1:], strict=False)]
    axes.bar(
        histogram.edges[:-1],
        histogram.counts,
        width=[w * 0.94 for w in widths],
        align="edge",
        color=_MARKS[mark],
    )
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if unit == "bytes":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: bytes_text(x)))
    else:
        shown = "{:g}" if unit == "norm" else "{:,.0f}"
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: shown.format(x)))
        axes.set_xlabel(unit)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=unit != "norm"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_ylabel("requests" if unit == "bytes" else "results")
    axes.grid(axis="y")
    axes.tick_params(length=0)
    axes.set_xlim(histogram.edges[0], histogram.edges[-1])
    return _svg(figure, f"histogram-{unit}", f"Histogram of {unit}")


def plot_spans(spans: Sequence[Span]) -> Html:
    """Attempts on the time axis, one line a shard; past 60 shards the 60 that took longest."""
    shards = _slowest(spans)
    lines = {shard: i for i, shard in enumerate(sorted(shards))}
    figure, axes = _figure(max(0.9, 0.55 + 0.2 * len(lines)))
    last = max((s.end_s or s.start_s for s in spans), default=1.0) or 1.0
    for span in spans:
        if span.shard in lines:
            mark = _SPAN_MARKS.get(span.end or "vanished", "dead")
            # a vanished attempt is drawn for as long as something of it is known
            length = max((span.end_s or span.start_s) - span.start_s, last * 0.006)
            axes.barh(lines[span.shard], length, left=span.start_s, height=0.62, color=_MARKS[mark])
    axes.set_yticks(list(lines.values()), [_short(s) for s in lines])
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xlim(0, last * 1.01)
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _axis_time(x, last)))
    axes.grid(axis="x")
    axes.tick_params(length=0)
    return _svg(figure, "spans", "Attempts over time")


def _axis_time(seconds: float, last: float) -> str:
    return f"{seconds:g} s" if last < 120 else duration_text(seconds) if seconds else "0"


def _slowest(spans: Sequence[Span]) -> set[str]:
    took: dict[str, float] = {}
    for s in spans:
        took[s.shard] = took.get(s.shard, 0.0) + (s.end_s or s.start_s) - s.start_s
    return set(sorted(took, key=lambda shard: (-took[shard], shard))[:_MAX_SPANS])


def _short(shard: str) -> str:
    return shard.removeprefix("shard-")


def _figure(height_in: float) -> tuple[Any, Any]:
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
        FigureCanvasSVG(figure)
        return figure, figure.add_subplot()


def _node(axes: Any, x: float, top: float, height: float, mark: str) -> None:
    from matplotlib.patches import Rectangle

    height = max(height, _THIN)
    axes.add_patch(Rectangle((x, top - height), _NODE, height, color=_MARKS[mark], linewidth=0))


def _band(
    axes: Any, start: tuple[float, float], end: tuple[float, float], height: float, mark: str
) -> None:
    """A band between two upper corners, of one height, bent like a river."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    (x0, top0), (x1, top1) = start, end
    height, bend = max(height, _THIN), x1 - (x1 - x0) * 0.42
    low0, low1 = top0 - height, top1 - height
    upper = [(x0, top0), (bend, top0), (bend, top1), (x1, top1)]
    lower = [(x1, low1), (bend, low1), (bend, low0), (x0, low0)]
    curve = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
    path = Path([*upper, *lower, (x0, top0)], curve)
    axes.add_patch(PathPatch(path, color=_MARKS[mark], alpha=0.36, linewidth=0))


def _label(axes: Any, x: float, y: float, text: str, ha: str, va: str = "bottom") -> None:
    axes.text(x, y, text, ha=ha, va=va, fontsize=9, color=_MARKS["ink"])


def _svg(figure: Any, salt: str, title: str) -> Html:
    """The drawing as one <svg> element whose ids and bytes depend on nothing but what it shows."""
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context(_STYLE | {"svg.hashsalt": salt}):
        figure.savefig(
            out, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    for name, mark in _MARKS.items():
        svg = svg.replace(mark, f"var(--{name})")
    for pattern in _NOISE:
        svg = pattern.sub("", svg)
    # ids of several drawings share one page: only those that something refers to stay
    used = set(re.findall(r"#([\w-]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda m: m.group(0) if m.group(1) in used else "", svg)
    opening = rf'<svg viewBox="\1" role="img" aria-label="{title}">'
    svg = re.sub(r'<svg[^>]*viewBox="([^"]+)"[^>]*>', opening, svg, count=1)
    return raw(svg)
