"""Engines by the kind of a job: each kind has a smallest request that a well engine can do."""

import asyncio
import math
from array import array
from pathlib import Path
from typing import Any

import pytest

from shardline.engines import known_good
from shardline.engines.base import Answer, RequestRefused
from shardline.engines.stub import StubEngine
from shardline.kinds import FORMS
from shardline.reasons import DeadLetterReason
from shardline.rows import Request
from tests.factories import make_job


def embed(text: str, **fields: Any) -> Request:
    body = {"input": text, "encoding_format": "base64", **fields}
    return Request("f1", "POST", "/v1/embeddings", body)


def complete(text: str, **fields: Any) -> Request:
    return Request("f1", "POST", "/v1/completions", {"prompt": text, **fields})


def run(request: Request, **args: Any) -> Answer | RequestRefused:
    engine = StubEngine(args)
    (prepared,) = engine.prepare([request])
    if isinstance(prepared, RequestRefused):
        return prepared
    return asyncio.run(engine.generate(request.custom_id, prepared))


def numbers(answer: Answer | RequestRefused) -> list[float]:
    assert isinstance(answer, Answer)
    assert answer.embedding is not None
    return list(array("f", answer.embedding))


@pytest.mark.parametrize("kind", FORMS)
def test_an_engine_that_is_well_can_do_the_known_good_request(tmp_path: Path, kind: str) -> None:
    answer = run(known_good(make_job(tmp_path, kind=kind)))
    assert isinstance(answer, Answer)
    assert bool(answer.embedding) is (kind == "embedding")


def test_a_stubs_vector_is_a_unit_vector_that_the_request_decides() -> None:
    once, again = numbers(run(embed("a b"))), numbers(run(embed("a b")))
    assert once == again
    assert len(once) == 8
    assert math.hypot(*once) == pytest.approx(1, abs=1e-6)
    assert len(numbers(run(embed("a b"), dimension=3))) == 3
    assert len(numbers(run(embed("a b", dimensions=5)))) == 5


def test_a_stub_counts_the_words_of_an_input_and_none_of_the_answer() -> None:
    answer = run(embed("one two three"))
    assert isinstance(answer, Answer)
    assert (answer.prompt_tokens, answer.completion_tokens, answer.text) == (3, 0, "")


def test_a_completion_writes_16_tokens_where_nobody_says_otherwise() -> None:
    answer = run(complete("word " * 20))
    assert isinstance(answer, Answer)
    assert (answer.completion_tokens, answer.finish_reason) == (16, "length")
    cut = run(complete("word " * 20, max_tokens=3))
    assert isinstance(cut, Answer)
    assert cut.completion_tokens == 3


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (embed("a " * 9), DeadLetterReason.TOO_LONG),
        (embed(" "), DeadLetterReason.EMPTY_PROMPT),
        (embed("a", temperature=1), DeadLetterReason.BAD_PARAMETER),
        (complete("a " * 9), DeadLetterReason.TOO_LONG),
        (complete("a", messages=[]), DeadLetterReason.BAD_PARAMETER),
    ],
)
def test_a_request_that_cannot_be_done_is_refused(
    request_: Request, reason: DeadLetterReason
) -> None:
    refused = run(request_, max_model_len=8)
    assert isinstance(refused, RequestRefused)
    assert refused.reason is reason
