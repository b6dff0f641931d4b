from typing import Any

import pytest

from shardline.engines.base import RequestRefused
from shardline.engines.openai_body import parse_body, parse_completion, parse_embedding
from shardline.reasons import DeadLetterReason

MESSAGES = [{"role": "user", "content": "hello"}]


def reason(**body: Any) -> DeadLetterReason:
    with pytest.raises(RequestRefused) as refused:
        parse_body({"messages": MESSAGES, **body})
    return refused.value.reason


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"max_tokens": "8"},
        {"temperature": -1},
        {"top_p": 0},
        {"seed": 2**64},
        {"n": 2},
        {"stop": 3},
        {"presence_penalty": 3},
        {"tools": []},
        {"logprobs": True},
        {"top_k": 5},
        {"messages": "hello"},
    ],
)
def test_a_parameter_that_is_unknown_or_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    assert reason(**wrong) is DeadLetterReason.BAD_PARAMETER


def test_null_is_absent() -> None:
    assert parse_body({"messages": MESSAGES, "temperature": None, "stop": None}).temperature is None


def test_max_completion_tokens_is_the_newer_name_and_wins() -> None:
    assert (
        parse_body({"messages": MESSAGES, "max_tokens": 1, "max_completion_tokens": 2}).limit == 2
    )


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    parsed = parse_body({"messages": [{"role": "user", "content": parts}]})
    assert parsed.messages[0]["content"] == "ab"


def test_an_image_is_unsupported_content() -> None:
    image = [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
    messages = [{"role": "user", "content": image}]
    assert reason(messages=messages) is DeadLetterReason.UNSUPPORTED_CONTENT


def test_a_broken_schema_is_found_before_the_engine_sees_it() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": 7}}}
    assert reason(response_format=form) is DeadLetterReason.BAD_SCHEMA
    assert reason(response_format={"type": "json_schema"}) is DeadLetterReason.BAD_SCHEMA


def test_a_completion_has_the_fields_of_its_own_api() -> None:
    assert parse_completion({"prompt": "a", "max_tokens": None}).limit == 16
    assert parse_completion({"prompt": "a", "max_tokens": 3, "seed": 1}).limit == 3


@pytest.mark.parametrize(
    "wrong",
    [{"prompt": [1, 2]}, {"echo": True}, {"response_format": {}}, {"max_completion_tokens": 1}],
)
def test_what_a_completion_cannot_have_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused) as refused:
        parse_completion({"prompt": "a", **wrong})
    assert refused.value.reason is DeadLetterReason.BAD_PARAMETER


@pytest.mark.parametrize(
    "wrong",
    [
        {"input": ["a", "b"]},
        {"encoding_format": "float"},
        {"encoding_format": None},
        {"dimensions": 0},
        {"max_tokens": 1},
    ],
)
def test_what_an_embedding_cannot_have_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused) as refused:
        parse_embedding({"input": "a", "encoding_format": "base64", **wrong})
    assert refused.value.reason is DeadLetterReason.BAD_PARAMETER
