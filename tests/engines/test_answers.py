import base64
import math
from array import array
from typing import Any

import pytest

from shardline.engines.answers import check_schema, encode_line, make_dead, make_result
from shardline.engines.base import Answer, RequestRefused
from shardline.reasons import DeadLetterReason
from shardline.rows import Request, Result

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
CHOICE = {
    "type": "object",
    "properties": {"choice": {"type": "string", "enum": ["yes", "no"]}},
    "required": ["choice"],
    "additionalProperties": False,
}


def ask(schema: dict[str, Any] | None = None, name: str = "output") -> Request:
    body: dict[str, Any] = {"messages": []}
    if schema is not None:
        form = {"name": name, "strict": True, "schema": schema}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    return Request("f1", "POST", "/v1/chat/completions", body)


def answer(
    request: Request, text: str, finish: str = "stop", refuse_truncated: bool = False
) -> Result:
    return make_result(
        request,
        "s-000000",
        Answer(text, finish, 3, 2),
        model="job",
        refuse_truncated=refuse_truncated,
    )


def code(result: Result) -> str | None:
    return result.error.code if result.error else None


def content(result: Result) -> str:
    assert result.response
    return str(result.response.body["choices"][0]["message"]["content"])


def test_a_text_becomes_an_openai_completion() -> None:
    result = answer(ask(), "hello")
    assert result.response
    body = result.response.body
    assert content(result) == "hello"
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert (body["model"], body["created"]) == ("job", 0)


def test_a_bare_choice_is_wrapped_as_the_schema_asks() -> None:
    assert content(answer(ask(CHOICE, "choice"), "yes")) == '{"choice":"yes"}'


@pytest.mark.parametrize("text", ["ye", "", "maybe", '{"choice":"yes"}'])
def test_what_is_no_choice_is_an_invalid_output_and_keeps_the_text(text: str) -> None:
    result = answer(ask(CHOICE, "choice"), text)
    assert code(result) == "invalid_output"
    assert result.error
    assert result.error.raw_output == text


@pytest.mark.parametrize("text", ['{"x": 1', '{"x": "1"}', "{}", "[]", '{"x":1,"y":2}', ""])
def test_json_that_breaks_the_schema_is_an_invalid_output(text: str) -> None:
    assert code(answer(ask(POINT), text)) == "invalid_output"


def test_the_message_of_an_invalid_output_does_not_quote_the_answer() -> None:
    result = answer(ask(POINT), '{"x": "secret"}')
    assert result.error
    assert "secret" not in result.error.message


def test_json_that_fits_is_kept_as_the_model_wrote_it() -> None:
    assert content(answer(ask(POINT), '{ "x": 1 }')) == '{ "x": 1 }'


def test_a_cut_answer_is_kept_unless_the_job_refuses_it() -> None:
    assert code(answer(ask(), "hello", "length")) is None
    assert code(answer(ask(), "hello", "length", refuse_truncated=True)) == "truncated"


def test_a_cut_answer_that_breaks_the_schema_is_invalid_whatever_the_job_says() -> None:
    assert code(answer(ask(POINT), '{"x":', "length")) == "invalid_output"
    assert code(answer(ask(POINT), '{"x":', "length", refuse_truncated=True)) == "invalid_output"


def test_equal_answers_give_equal_bytes() -> None:
    assert encode_line(answer(ask(), "a")) == encode_line(answer(ask(), "a"))


def test_a_schema_that_is_none_is_refused_before_it_reaches_the_engine() -> None:
    with pytest.raises(RequestRefused) as refused:
        check_schema({"type": "nonsense"})
    assert refused.value.reason is DeadLetterReason.BAD_SCHEMA


def test_a_reference_into_the_net_is_never_followed() -> None:
    result = answer(ask({"$ref": "http://127.0.0.1:9/schema.json"}), "{}")
    assert code(result) == "invalid_output"


def test_a_long_message_is_cut() -> None:
    result = make_dead(ask(), "s-0", DeadLetterReason.ENGINE_ERROR, "x" * 10_000)
    assert result.error
    assert len(result.error.message) == 500


def embedding(numbers: list[float]) -> Result:
    vector = array("f", numbers).tobytes()
    request = Request("f1", "POST", "/v1/embeddings", {"input": "a"})
    return make_result(
        request, "s-0", Answer("", "stop", 3, 0, vector), model="job", refuse_truncated=False
    )


def test_a_vector_becomes_an_openai_embedding_in_base64() -> None:
    result = embedding([0.5, -1.0])
    assert result.response
    body = result.response.body
    assert body["object"] == "list"
    (item,) = body["data"]
    assert list(array("f", base64.b64decode(item["embedding"]))) == [0.5, -1.0]
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}


@pytest.mark.parametrize(
    "numbers", [[math.nan, 1.0], [math.inf, -math.inf], [1.0, math.inf], [-math.inf], []]
)
def test_a_vector_of_what_is_no_number_is_an_invalid_output(numbers: list[float]) -> None:
    assert code(embedding(numbers)) == "invalid_output"


def test_a_vector_of_the_largest_numbers_is_a_result() -> None:
    assert code(embedding([3.4e38] * 1000)) is None


def test_a_completion_is_a_text_completion() -> None:
    request = Request("f1", "POST", "/v1/completions", {"prompt": "a"})
    result = answer(request, "hello", "length")
    assert result.response
    body = result.response.body
    assert (body["object"], body["id"]) == ("text_completion", "cmpl-f1")
    assert body["choices"][0]["text"] == "hello"
    assert body["choices"][0]["finish_reason"] == "length"
    assert code(answer(request, "hello", "length", refuse_truncated=True)) == "truncated"
