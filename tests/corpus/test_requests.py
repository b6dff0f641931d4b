"""Requests: the fast renderer writes exactly the canonical JSON of the obvious body."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.corpus.requests import (
    BodyRenderer,
    canonical,
    custom_id,
    fingerprint_of,
    request_body,
    request_line,
)
from shardline.job import JobFile
from tests.factories import make_job

FOLDER = Path("/corpus")
TWO_COLUMNS = [
    {"role": "system", "content": "Say {{ '{{' }} \"yes\"\n"},
    {"role": "user", "content": "{{ a }} and {{ b.c }} and {{ a }} again"},
]


def make(**overrides: Any) -> JobFile:
    return make_job(FOLDER, **({"messages": TWO_COLUMNS} | overrides))


def make_completion(**overrides: Any) -> JobFile:
    given = {"kind": "completion", "prompt": '{{ a }}, "{{ b.c }}"\n{{ a }} so'}
    return make_job(FOLDER, **(given | overrides))


def make_embedding(**overrides: Any) -> JobFile:
    given = {"kind": "embedding", "input": "{{ a }} {{ b.c }}"}
    return make_job(FOLDER, **(given | overrides))


def slow_canonical(value: object) -> bytes:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode()


texts = st.text(st.characters(codec="utf-8"))


@pytest.mark.protocol(2)
@given(texts, texts)
@settings(max_examples=200)
def test_a_rendered_body_is_the_canonical_json_of_the_body(a: str, b: str) -> None:
    job = make(output={"choices": ["x", "y"]})
    body = BodyRenderer(job).render([a, b])
    assert body == slow_canonical(request_body(job, {"a": a, "b.c": b}))
    assert json.loads(body)["messages"][1]["content"] == f"{a} and {b} and {a} again"


@pytest.mark.protocol(2)
@given(texts, texts)
@settings(max_examples=100)
def test_bodies_of_other_kinds_are_canonical_too(a: str, b: str) -> None:
    completion, embedding = make_completion(), make_embedding(parameters={"dimensions": 8})
    for job, asked in ((completion, f'{a}, "{b}"\n{a} so'), (embedding, f"{a} {b}")):
        body = BodyRenderer(job).render([a, b])
        assert body == slow_canonical(request_body(job, {"a": a, "b.c": b}))
        assert json.loads(body)[job.form.asks] == asked


@pytest.mark.protocol(2)
def test_a_completion_and_an_embedding_are_what_openai_calls_them() -> None:
    completion, embedding = make_completion(), make_embedding()
    body = BodyRenderer(completion).render(["x", "y"])
    assert body == b'{"max_tokens":8,"prompt":"x, \\"y\\"\\nx so","temperature":0}'
    line = json.loads(request_line(completion, body, "abc"))
    assert (line["url"], line["body"]["model"]) == ("/v1/completions", "test-job")
    body = BodyRenderer(embedding).render(["x", "y"])
    assert body == b'{"encoding_format":"base64","input":"x y"}'
    assert json.loads(request_line(embedding, body, "abc"))["url"] == "/v1/embeddings"


def test_what_looks_like_a_placeholder_in_a_text_is_text() -> None:
    body = BodyRenderer(make()).render(["{{ b.c }}", "{{ a }}"])
    assert b"{{ b.c }} and {{ a }} and {{ b.c }} again" in body


@pytest.mark.protocol(2)
def test_the_body_has_no_model_and_sorted_keys_around_the_messages() -> None:
    job = make(parameters={"temperature": 0, "max_tokens": 4, "logit_bias": {5: -1}})
    body = BodyRenderer(job).render(["x", "y"])
    assert list(json.loads(body)) == ["logit_bias", "max_tokens", "messages", "temperature"]
    assert body.startswith(b'{"logit_bias":{"5":-1},"max_tokens":4,"messages":[{"content":"Say {{')
    assert body.endswith(b'"role":"user"}],"temperature":0}')


def test_choices_and_schemas_become_a_response_format() -> None:
    choices = json.loads(BodyRenderer(make(output={"choices": ["x", "y"]})).render(["", ""]))
    form = choices["response_format"]["json_schema"]
    assert form["name"] == "choice"
    assert form["schema"]["properties"] == {"choice": {"type": "string", "enum": ["x", "y"]}}
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    given_schema = json.loads(BodyRenderer(make(output={"json_schema": schema})).render(["", ""]))
    assert given_schema["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "output", "strict": True, "schema": schema},
    }
    assert "response_format" not in json.loads(BodyRenderer(make()).render(["", ""]))


@pytest.mark.protocol(2)
def test_a_fingerprint_is_blake3_of_the_body_in_16_bytes() -> None:
    assert fingerprint_of(b"{}") == blake3(b"{}").digest(16)


@pytest.mark.protocol(2)
def test_a_request_line_is_openai_batch_input_under_the_name_of_the_job() -> None:
    job = make()
    body = BodyRenderer(job).render(["é", "y"])
    line = request_line(job, body, "abc")
    assert line.endswith(b"}\n")
    value = json.loads(line)
    assert value == {
        "custom_id": "abc",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "test-job", **json.loads(body)},
    }
    del value["body"]["model"]
    assert canonical(value["body"]) == body


@pytest.mark.protocol(2)
def test_without_dedupe_the_position_is_part_of_the_name() -> None:
    once, each = make(), make(corpus__dedupe="none")
    assert custom_id(once, b"\1" * 16, "a.jsonl", 1) == "01" * 16
    names = {custom_id(each, b"\1" * 16, s, r) for s in ("a.jsonl", "b.jsonl") for r in (1, 2)}
    assert len(names) == 4
    assert all(name.startswith("01" * 16 + "-") for name in names)


@pytest.mark.parametrize("text", ["\0", "\x1f", "\x7f", "\u2028", "\U0001f600", '"\\/', "\b\f"])
def test_odd_characters_are_written_as_json_writes_them(text: str) -> None:
    assert canonical(text) == slow_canonical(text)
