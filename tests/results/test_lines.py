"""How merge reads a line of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardline.errors import LawBroken, ValidationFailed
from shardline.results.lines import Ended, output_reader, read_results
from shardline.results.schema import output_type
from tests.factories import make_job

GOOD = {"message": {"content": "hi"}, "finish_reason": "stop"}


def line(custom_id: str = "a", choices: Any = (GOOD,), **other: Any) -> bytes:
    response = {"status_code": 200, "body": {"choices": list(choices), "usage": None}}
    whole = {"id": "i", "custom_id": custom_id, "response": response, "error": None} | other
    return json.dumps(whole).encode() + b"\n"


def read(tmp_path: Path, *lines: bytes, **job: Any) -> Any:
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(lines))
    checked = make_job(tmp_path, **job)
    return read_results(path, output_reader(checked, output_type(checked)))


def test_a_result_and_a_dead_letter(tmp_path: Path) -> None:
    dead = line("b", response=None, error={"code": "too_long", "message": "m"})
    found = read(tmp_path, line(), dead)
    assert found.ended["a"] == Ended("hi", "stop", None, None, None)
    assert found.ended["b"].reason == "too_long"


def test_a_line_that_comes_twice_is_told(tmp_path: Path) -> None:
    assert read(tmp_path, line(), line("b"), line()).doubled == ["a"]


@pytest.mark.parametrize(
    "bad",
    [
        b'{"custom_id":"a","resp\n',
        b"\n",
        line(response=None),
        line(error={"code": "x", "message": ""}),
        line(choices=[]),
        line(choices=[GOOD, GOOD]),
        line(choices=[{"finish_reason": "stop"}]),
    ],
)
def test_what_is_neither_result_nor_error_names_its_line(tmp_path: Path, bad: bytes) -> None:
    with pytest.raises(LawBroken, match=r"results\.jsonl line 2: "):
        read(tmp_path, line("first"), bad)


@pytest.mark.parametrize(
    ("content", "output"),
    [('{"choice":"bug"}', "bug"), ("bug", "bug"), ('{"choice":3}', '{"choice":3}'), (None, None)],
)
def test_a_choice_is_unwrapped_and_anything_else_left_for_the_gate(
    tmp_path: Path, content: str | None, output: str | None
) -> None:
    answer = {"message": {"content": content}, "finish_reason": "stop"}
    found = read(tmp_path, line(choices=[answer]), output={"choices": ["bug", "other"]})
    assert found.ended["a"].output == output


def test_json_is_typed_and_what_was_lost_is_counted(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    answer = {"message": {"content": '{"n": 1e3, "more": 1}'}, "finish_reason": "stop"}
    found = read(tmp_path, line(choices=[answer]), output={"json_schema": schema})
    assert found.ended["a"].output == {"n": 1000}
    assert found.lost_values == 1
    assert pa.array([found.ended["a"].output], pa.struct([("n", pa.int64())])).to_pylist()


def test_an_answer_that_is_no_json_names_its_line(tmp_path: Path) -> None:
    answer = {"message": {"content": '{"n": 1'}, "finish_reason": "length"}
    with pytest.raises(ValidationFailed, match="line 1: the answer to a is not JSON"):
        read(tmp_path, line(choices=[answer]), output={"json_schema": {"type": "object"}})
