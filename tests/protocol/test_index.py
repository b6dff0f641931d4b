"""Every rule of the protocol is a test: by number, and the other way round."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
PROTOCOL = TESTS.parent / "include/docs/protocol.md"

TO_COME: dict[int, str] = {}


def rules() -> set[int]:
    return {int(n) for n in re.findall(r"^(\d+)\. ", PROTOCOL.read_text(encoding="utf-8"), re.M)}


def marks(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.protocol":
            yield node


def marked() -> dict[int, list[str]]:
    """Rule → the files with tests of it."""
    found: dict[int, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for call in marks(ast.parse(path.read_text(encoding="utf-8"))):
            assert call.args, f"{path}:{call.lineno}: protocol() names no rule"
            for argument in call.args:
                found.setdefault(ast.literal_eval(argument), []).append(path.name)
    return found


def test_every_rule_has_tests_or_a_reason_why_not_yet() -> None:
    assert sorted(rules()) == list(range(1, 25))
    assert rules() - set(marked()) == set(TO_COME)


def test_no_test_claims_a_rule_that_is_not_there() -> None:
    assert set(marked()) <= rules()
