"""Carried columns: one published type per column, whatever kinds of value its rows hold.

Only what holds every value exactly is chosen; a column of mixed kinds becomes JSON text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from shardline.corpus.raw import Digits

_INT64 = range(-(1 << 63), 1 << 63)
_ONE_KIND = {"int": "int64", "float": "double", "bool": "bool", "string": "string"}


def kind_of(value: object) -> str | None:
    """bool, int, float, string or nested; None for null."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    if isinstance(value, float):
        return "float"
    return "string" if isinstance(value, str) else "nested"


def keep_carried(value: Any) -> str | int | float | bool | None:
    """A carried value as the spill keeps it.

    Integers over 64 bits become their digits, arrays and objects their JSON text: their column is
    published as strings anyway, and this is exact.
    """
    if isinstance(value, dict | list):
        return _json_text(value)
    if isinstance(value, Digits) or (type(value) is int and value not in _INT64):
        return str(value)
    return value  # type: ignore[no-any-return]


def published_type(kinds: Iterable[str]) -> str:
    """string, int64, double or bool: the type of a column whose values have these kinds."""
    found = set(kinds)
    if found == {"int", "float"}:
        return "double"
    return _ONE_KIND.get(next(iter(found)), "string") if len(found) == 1 else "string"


def cast_carried(value: Any, type_name: str) -> str | int | float | bool | None:
    """A carried value as its column's published type: strings stay, other kinds become JSON text."""
    if value is None:
        return None
    if type_name == "double":
        return float(value)
    if type_name != "string" or isinstance(value, str):
        return value  # type: ignore[no-any-return]
    return _json_text(value)


def _json_text(value: Any) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them inside of JSON text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list) else value
