"""The kinds of job: where each sends its requests, and which fields of the job file it has.

A request's kind can be told from its `url` alone, so a shard file needs nothing beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Kind = Literal["chat", "completion", "embedding", "video"]

_ELSEWHERE = {
    "model": "the model stands in the block of the runner",
    "stream": "nobody reads along",
    "n": "one answer per document",
}


class Form(NamedTuple):
    """What requests of one kind look like."""

    url: str
    asks: str
    """The field with what is asked: of the job file, and of a request's body."""
    elsewhere: Mapping[str, str]
    """Fields of the body that `parameters` must not hold → why."""
    only: frozenset[str] | None = None
    """All that `parameters` may hold; None: the API has so many that the engine checks them."""
    fixed: Mapping[str, Any] = {}
    """Fields that every body has."""


FORMS: Mapping[str, Form] = {
    "chat": Form(
        "/v1/chat/completions",
        "messages",
        {
            **_ELSEWHERE,
            "messages": "the messages stand in `messages`",
            "response_format": "the form of the answer stands in `output`",
        },
    ),
    "completion": Form(
        "/v1/completions",
        "prompt",
        {
            **_ELSEWHERE,
            "prompt": "the prompt stands in `prompt`",
            "response_format": "completions answer in text",
        },
    ),
    "embedding": Form(
        "/v1/embeddings",
        "input",
        {
            **_ELSEWHERE,
            "input": "the input stands in `input`",
            "encoding_format": "vectors travel as base64",
        },
        only=frozenset({"dimensions", "user"}),
        # a quarter of what the same numbers need as text
        fixed={"encoding_format": "base64"},
    ),
}


def wrong_parameter(kind: str, parameters: Mapping[str, Any]) -> str | None:
    """Why a job file of this kind cannot have these parameters; None when it can."""
    form = FORMS[kind]
    for key in parameters:
        if why := form.elsewhere.get(key):
            return f"{key} cannot be set here: {why}"
        if form.only is not None and key not in form.only:
            known = ", ".join(sorted(form.only))
            return f"{key} cannot be set here: kind {kind} has only {known}"
    size = parameters.get("dimensions")
    if kind == "embedding" and size is not None and (type(size) is not int or size < 1):
        return f"dimensions: expected a whole number from 1, found {size!r}"
    return None


def misfit(kind: str, field: str, value: object) -> str | None:
    """Why a field with what is asked does not fit the kind; None when it does."""
    asks = FORMS[kind].asks
    if field != asks:
        return f"kind {kind} asks with `{asks}`, not with `{field}`" if value else None
    return None if value else f"this field is missing or empty: kind {kind} asks with it"


def json_schema(schema: dict[str, Any]) -> None:
    """Tell editors which of the fields belongs to which kind."""
    fields = {form.asks for form in FORMS.values()}
    schema["allOf"] = [
        {
            "if": {
                "properties": {"kind": {"const": kind}},
                **({} if kind == "chat" else {"required": ["kind"]}),
            },
            "then": {
                "required": [form.asks],
                "properties": dict.fromkeys(sorted(fields - {form.asks}), False),
            },
        }
        for kind, form in FORMS.items()
    ]
