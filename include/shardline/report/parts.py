"""The few shapes that the sections of the page are made of."""

from __future__ import annotations

from collections.abc import Sequence

from shardline.report.html import Children, Html, tag
from shardline.status.words import share_text


def section(title: str, *children: Children) -> Html:
    return tag("section", tag("h2", title), *children)


def card(*children: Children) -> Html:
    return tag("div", *children, class_="card")


def figure(svg: Html, caption: str = "", title: str = "") -> Html:
    """A plot in a card of its own."""
    return card(
        tag("h3", title) if title else None,
        tag("figure", svg, tag("figcaption", caption) if caption else None),
    )


def facts(pairs: Sequence[tuple[str, str]], class_: str = "facts big") -> Html:
    return tag("dl", [tag("div", tag("dt", k), tag("dd", v)) for k, v in pairs], class_=class_)


def split_bar(parts: Sequence[tuple[str, float, str, str]]) -> Html:
    """One bar cut in shares, with its legend. Parts: (name, amount, its text, colour)."""
    shown = [p for p in parts if p[1] > 0]
    whole = sum(p[1] for p in shown) or 1.0
    bar = [
        tag("i", style=f"width:{100 * amount / whole:.3f}%;background:var(--{color})", title=name)
        for name, amount, _, color in shown
    ]
    legend = [
        tag(
            "li",
            tag("i", style=f"background:var(--{color})"),
            f"{name} {text}",
            tag("span", f" · {share_text(amount, whole)}", class_="muted"),
        )
        for name, amount, text, color in shown
    ]
    return tag("div", tag("div", bar, class_="bar"), tag("ul", legend, class_="legend"))


def bars(rows: Sequence[tuple[str, int]], whole: int) -> Html:
    """One line for each name: a bar, its count and its share of the whole."""
    most = max((n for _, n in rows), default=1) or 1
    cells = [
        [
            tag("span", name),
            tag("span", tag("i", style=f"width:{100 * n / most:.2f}%"), class_="track"),
            tag(
                "span",
                f"{n:,}",
                tag("span", f" · {share_text(n, whole)}", class_="muted"),
                class_="num",
            ),
        ]
        for name, n in rows
    ]
    return tag("div", *cells, class_="rows")


def table(
    head: Sequence[str], rows: Sequence[Sequence[Children]], numbers: Sequence[int] = ()
) -> Html:
    """A table that scrolls sideways on a phone; `numbers` are the columns that hold numbers."""

    def cell(name: str, i: int, content: Children) -> Html:
        return tag(name, content, class_="num" if i in numbers else None)

    return tag(
        "div",
        tag(
            "table",
            tag("thead", tag("tr", [cell("th", i, h) for i, h in enumerate(head)])),
            tag("tbody", [tag("tr", [cell("td", i, c) for i, c in enumerate(r)]) for r in rows]),
        ),
        class_="scroll",
    )
