"""The table of `vllm_cases` on the real engine: one start, all cases at the same time."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from samples.tiny_model import make_tiny_model
from shardline.engines.base import RequestRefused
from shardline.engines.openai_body import parse_body, parse_completion
from shardline.rows import Request
from shardline.runners.local import worker_environment
from tests.engines.vllm_cases import (
    BYSTANDERS,
    CASES,
    COMPARED,
    COMPLETION,
    INEXPRESSIBLE,
    RESULT,
    Case,
)

PROJECT = Path(__file__).parents[2]
# found only by the tokenizer or by the engine
LATE = {
    "far too long",
    "as long as the model takes, and no room",
    "no token",
    "a lone surrogate",
    "an empty stop string",
    "logit_bias out of the vocabulary",
    "logit_bias of a negative id",
    "logit_bias of a word",
    "a reference to itself",
    "a reference to nothing",
    "no choice to choose from",
}


def test_there_are_as_many_as_were_found() -> None:
    assert len(CASES) + len(INEXPRESSIBLE) == 57
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_wrong_with_a_body_is_found_before_any_engine_sees_it(case: Case) -> None:
    parse = parse_completion if case.url == COMPLETION else parse_body
    try:
        parse(case.body)
        end = RESULT
    except RequestRefused as refused:
        end = refused.reason.value
    assert end == (RESULT if case.name in LATE else case.end)


@pytest.mark.parametrize("case", INEXPRESSIBLE, ids=lambda case: case.name)
def test_what_cannot_stand_in_a_shard_file_is_no_request(case: object) -> None:
    line = case.line  # type: ignore[attr-defined]
    if line is not None:
        with pytest.raises(msgspec.MsgspecError):
            msgspec.json.decode(line, type=Request)


@pytest.fixture(scope="module")
def ran() -> dict[str, Any]:
    model = make_tiny_model(PROJECT / "var" / "models" / "tiny")
    command = [sys.executable, "-m", "tests.engines.vllm_cases", str(model)]
    env = worker_environment({}) | {"PYTHONPATH": f"{PROJECT}/include:{PROJECT}"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=env, cwd=PROJECT, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: CASES[n].name)
def test_each_wrong_request_ends_with_its_reason(ran: dict[str, Any], number: int) -> None:
    assert ran["ends"][number] == CASES[number].end


@pytest.mark.slow
def test_bystanders_are_unhurt(ran: dict[str, Any]) -> None:
    assert ran["ends"][len(CASES) :] == [RESULT] * len(BYSTANDERS)


@pytest.mark.slow
def test_answers_are_those_of_plain_vllm(ran: dict[str, Any]) -> None:
    assert len(ran["texts"]) == len(COMPARED)
    for ours, plain in ran["texts"]:
        assert ours == plain
    finishes = {finish for (_, finish, _), _ in ran["texts"]}
    assert finishes == {"stop", "length"}
    assert ["", "stop", 1] in [ours for ours, _ in ran["texts"]]
