"""HTML that cannot carry somebody's script: a plain string is escaped wherever it is put.

Only `Html` passes as it is, and only `tag` and `raw` make it; `raw` is for our own style sheet and plots.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_VOID = frozenset({"meta", "br", "hr", "img"})


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child = Html | str | int | None
Children = Child | Iterable[Child]


def raw(markup: str) -> Html:
    """Markup of our own making; never anything that came with a document or a job file."""
    return Html(markup)


def tag(name: str, /, *children: Children, **attributes: str | None) -> Html:
    """An element. `class_` and `http_equiv` are written as in HTML; None leaves an attribute out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{join(*children)}</{name}>")


def join(*children: Children) -> Html:
    """Children one after the other, the plain ones escaped."""
    return Html("".join(map(_one, children)))


def _one(child: Children) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str | int):
        return escape(str(child))
    return "".join(map(_one, child))
