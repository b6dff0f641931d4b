"""What a request's body may hold: the fields of OpenAI's APIs that an engine can follow.

One list for all engines, so that a job file with a wrong parameter fails alike on each of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec

from shardline.engines.answers import check_schema
from shardline.engines.base import RequestRefused, schema_of
from shardline.reasons import DeadLetterReason

T = TypeVar("T")
_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
_Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


_COMPLETION_TOKENS = 16


class _Sampling(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of both APIs that write text; null is absent, as with OpenAI."""

    max_tokens: _Tokens | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    stop: str | list[str] | None = None
    seed: _Seed | None = None
    logit_bias: dict[str, Annotated[float, msgspec.Meta(ge=-100, le=100)]] | None = None
    n: Literal[1] | None = None
    # for the provider, without a say in the answer
    model: str | None = None
    user: str | None = None


class Parameters(_Sampling):
    """The body of a chat's request."""

    messages: list[dict[str, Any]]
    response_format: dict[str, Any] | None = None
    max_completion_tokens: _Tokens | None = None
    reasoning_effort: str | None = None
    # for the provider, without a say in the answer
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    @property
    def limit(self) -> int | None:
        """The most tokens to write; None for as many as the model has room for."""
        return self.max_completion_tokens or self.max_tokens


class Completion(_Sampling):
    """The body of a completion's request."""

    prompt: str

    @property
    def limit(self) -> int:
        """The most tokens to write; 16 where a request does not say, as with OpenAI."""
        return self.max_tokens or _COMPLETION_TOKENS


class Embedding(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of an embedding's request."""

    input: str
    encoding_format: Literal["base64"]
    """A quarter of the size of numbers as text; nobody needs the other."""
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    model: str | None = None
    user: str | None = None


def parse_completion(body: dict[str, Any]) -> Completion:
    """Check the body of a completion. Raises RequestRefused: bad_parameter."""
    return _convert(body, Completion)


def parse_embedding(body: dict[str, Any]) -> Embedding:
    """Check the body of an embedding. Raises RequestRefused: bad_parameter."""
    return _convert(body, Embedding)


def _convert(body: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise RequestRefused(DeadLetterReason.BAD_PARAMETER, str(error)) from error


def parse_body(body: dict[str, Any]) -> Parameters:
    """Check the body of a chat's request.

    Raises:
        RequestRefused: bad_parameter, unsupported_content or bad_schema.
    """
    parameters = parse_settings(body)
    parameters.messages = check_messages(parameters.messages)
    return parameters


def parse_settings(body: dict[str, Any]) -> Parameters:
    """Check what stands in the body of a chat beside the messages.

    Raises:
        RequestRefused: bad_parameter or bad_schema.
    """
    parameters = _convert(body, Parameters)
    if (schema := schema_of(body)) is not None:
        check_schema(schema)
    elif (parameters.response_format or {}).get("type", "text") not in ("text", "json_object"):
        raise RequestRefused(DeadLetterReason.BAD_SCHEMA, "response_format: no schema in it")
    return parameters


def check_messages(messages: object) -> list[dict[str, Any]]:
    """Messages with their texts in one piece.

    Raises:
        RequestRefused: bad_parameter or unsupported_content.
    """
    if not isinstance(messages, list) or not messages:
        raise RequestRefused(DeadLetterReason.BAD_PARAMETER, "messages: expected at least one")
    if not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages):
        raise RequestRefused(DeadLetterReason.BAD_PARAMETER, "messages: expected a role in each")
    return [
        m if isinstance(m.get("content"), str) else {**m, "content": _text(m.get("content"))}
        for m in messages
    ]


def _text(content: object) -> str:
    """The text of a message: a string, or parts that are all text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if any(not isinstance(text, str) for text in texts):
        raise RequestRefused(DeadLetterReason.UNSUPPORTED_CONTENT, "messages: text only")
    return "".join(map(str, texts))
