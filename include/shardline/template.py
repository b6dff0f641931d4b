"""Message templates: `{{ column.path }}` is replaced literally, once; nothing else is interpreted.

What a document holds is never read as a template, so no text can reach into another column.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
# A column path: dot-separated names of letters, digits, _, -, $ and inner spaces.
_PATH = re.compile(r"[\w$-]+(?: +[\w$-]+)*(?:\.[\w$-]+(?: +[\w$-]+)*)*")
_BRACES = re.compile(r"""\s*(?:'\{\{'|"\{\{")\s*""")


@dataclass(frozen=True)
class Column:
    """A column that a template reads: the steps of its dotted path."""

    path: tuple[str, ...]

    @property
    def name(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True)
class Template:
    """A parsed template: literal text and columns, in order."""

    pieces: tuple[str | Column, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(p for p in self.pieces if isinstance(p, Column))

    def render(self, values: dict[str, str]) -> str:
        """Fill in `values`, keyed by dotted column name; each must be there."""
        return "".join(p if isinstance(p, str) else values[p.name] for p in self.pieces)


def parse_template(text: str) -> Template:
    """Cut a template into literals and columns.

    `{{ '{{' }}` writes two braces. Single braces and `}}` alone are literal text.

    Raises:
        ValueError: a placeholder that is no column path, or one that is never closed.
    """
    pieces: list[str | Column] = []
    at = 0
    while (start := text.find("{{", at)) >= 0:
        pieces.append(text[at:start])
        if braces := _match_braces(text, start):
            pieces.append("{{")
            at = braces
            continue
        found = _PLACEHOLDER.match(text, start)
        if found is None:
            raise ValueError("a placeholder opened by '{{' is never closed by '}}'")
        pieces.append(_column(found.group(1)))
        at = found.end()
    pieces.append(text[at:])
    return Template(tuple(p for p in pieces if p != ""))


def _match_braces(text: str, start: int) -> int:
    """The end of `{{ '{{' }}` at `start`, or 0."""
    inner = _BRACES.match(text, start + 2)
    return inner.end() + 2 if inner and text.startswith("}}", inner.end()) else 0


def _column(inside: str) -> Column:
    path = inside.strip()
    if not _PATH.fullmatch(path):
        raise ValueError(
            f"{{{{{inside}}}}}: expected a column name or a dotted path such as "
            "{{ subject }} or {{ meta.title }}; write {{ '{{' }} for two braces"
        )
    return Column(tuple(step.strip() for step in path.split(".")))
