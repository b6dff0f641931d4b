"""What a request's body may hold: the fields of OpenAI's Chat Completions that an engine can follow.

One list for all engines, so that a job file with a wrong parameter fails alike on each of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from shardline.engines.answers import check_schema
from shardline.engines.base import RequestRefused, schema_of
from shardline.reasons import DeadLetterReason

_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
_Tokens = Annotated[int, msgspec.Meta(ge=1)]
_Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Parameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a request; null is absent, as with OpenAI."""

    messages: list[dict[str, Any]]
    response_format: dict[str, Any] | None = None
    max_tokens: _Tokens | None = None
    max_completion_tokens: _Tokens | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    stop: str | list[str] | None = None
    seed: _Seed | None = None
    logit_bias: dict[str, Annotated[float, msgspec.Meta(ge=-100, le=100)]] | None = None
    n: Literal[1] | None = None
    reasoning_effort: str | None = None
    # for the provider, without a say in the answer
    model: str | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    @property
    def limit(self) -> int | None:
        """The most tokens to write; None for as many as the model has room for."""
        return self.max_completion_tokens or self.max_tokens


def parse_body(body: dict[str, Any]) -> Parameters:
    """Check a body.

    Raises:
        RequestRefused: bad_parameter, unsupported_content or bad_schema.
    """
    try:
        parameters = msgspec.convert(body, Parameters)
    except msgspec.ValidationError as error:
        raise RequestRefused(DeadLetterReason.BAD_PARAMETER, str(error)) from error
    for message in parameters.messages:
        message["content"] = _text(message.get("content"))
    if (schema := schema_of(body)) is not None:
        check_schema(schema)
    elif (parameters.response_format or {}).get("type", "text") not in ("text", "json_object"):
        raise RequestRefused(DeadLetterReason.BAD_SCHEMA, "response_format: no schema in it")
    return parameters


def _text(content: object) -> str:
    """The text of a message: a string, or parts that are all text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if any(not isinstance(text, str) for text in texts):
        raise RequestRefused(DeadLetterReason.UNSUPPORTED_CONTENT, "messages: text only")
    return "".join(map(str, texts))
