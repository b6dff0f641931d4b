"""Carried columns: the published type holds every value, exactly where one kind allows it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shardline.corpus.carried import cast_carried, keep_carried, kind_of, published_type
from shardline.corpus.raw import Digits


def column(*values: Any) -> tuple[str, list[Any]]:
    kept = [keep_carried(value) for value in values]
    type_name = published_type(kind for value in kept if (kind := kind_of(value)) is not None)
    return type_name, [cast_carried(value, type_name) for value in kept]


@pytest.mark.parametrize(
    ("values", "type_name", "published"),
    [
        ([1, None, -(1 << 63)], "int64", [1, None, -(1 << 63)]),
        ([1, 0.5], "double", [1.0, 0.5]),
        ([True, None], "bool", [True, None]),
        (["a", ""], "string", ["a", ""]),
        ([None, None], "string", [None, None]),
        ([1, True], "string", ["1", "true"]),
        ([1, "a"], "string", ["1", "a"]),
        ([1 << 63, 1], "string", [str(1 << 63), "1"]),
        ([Digits("9" * 5_000)], "string", ["9" * 5_000]),
        ([{"b": [1, "é"], "a": None}, "a"], "string", ['{"b":[1,"é"],"a":null}', "a"]),
        ([[math.nan], 1.5], "string", ["[null]", "1.5"]),
    ],
)
def test_a_column_is_published_in_the_narrowest_type_of_all_its_values(
    values: list[Any], type_name: str, published: list[Any]
) -> None:
    assert column(*values) == (type_name, published)
