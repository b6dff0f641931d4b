"""What the end of one request becomes: a result line, or a dead letter with its reason.

An answer is checked against the choices or the schema that its own request asks for, and a vector
for numbers that are none. Equal answers give equal bytes, whichever attempt wrote them.
"""

from __future__ import annotations

import base64
import math
from array import array
from functools import lru_cache
from typing import Any

import jsonschema
import msgspec
import orjson
from jsonschema.validators import validator_for
from referencing.exceptions import Unresolvable

from shardline.engines.base import Answer, RequestRefused, choices_of, schema_of
from shardline.job import JobFile
from shardline.kinds import FORMS
from shardline.reasons import DeadLetterReason
from shardline.rows import ErrorBody, Request, Response, Result

_ENCODER = msgspec.json.Encoder()
_MESSAGE_CHARACTERS = 500


def encode_line(result: Result) -> bytes:
    """One line of a segment."""
    return _ENCODER.encode(result) + b"\n"


def make_line(
    job: JobFile, shard: str, row: int, request: Request, end: Answer | RequestRefused
) -> Result:
    """The line of an ended request: row `row` of a shard of this job."""
    line_id = f"{shard}-{row:06d}"
    if isinstance(end, RequestRefused):
        return make_dead(request, line_id, end.reason, str(end))
    refuse = job.output.truncated == "dead_letter"
    return make_result(request, line_id, end, model=job.name, refuse_truncated=refuse)


def make_result(
    request: Request, line_id: str, answer: Answer, *, model: str, refuse_truncated: bool
) -> Result:
    """The line of an answer: a result, or `invalid_output` or `truncated`."""
    if answer.embedding is not None:
        return _embedding_result(request, line_id, answer.embedding, answer.prompt_tokens, model)
    content = answer.text
    if choices_of(request.body) is not None:
        content = orjson.dumps({"choice": answer.text}).decode()
    if wrong := _what_is_wrong(content, schema_of(request.body)):
        return make_dead(
            request, line_id, DeadLetterReason.INVALID_OUTPUT, wrong, raw_output=answer.text
        )
    if refuse_truncated and answer.finish_reason == "length":
        wrong = f"cut after {answer.completion_tokens} tokens"
        return make_dead(
            request, line_id, DeadLetterReason.TRUNCATED, wrong, raw_output=answer.text
        )
    make_body = _completion if request.url == FORMS["completion"].url else _chat_completion
    body = make_body(request.custom_id, content, answer, model)
    return Result(line_id, request.custom_id, response=Response(200, line_id, body))


def make_dead(
    request: Request,
    line_id: str,
    reason: DeadLetterReason,
    message: str,
    *,
    raw_output: str | None = None,
) -> Result:
    """The line of a request that has no result."""
    error = ErrorBody(reason.value, message[:_MESSAGE_CHARACTERS], raw_output)
    return Result(line_id, request.custom_id, error=error)


def check_schema(schema: dict[str, Any]) -> None:
    """Refuse a schema that no answer can be checked against.

    Raises:
        RequestRefused: bad_schema.
    """
    try:
        _validator(orjson.dumps(schema, option=orjson.OPT_SORT_KEYS))
    except jsonschema.SchemaError as error:
        raise RequestRefused(DeadLetterReason.BAD_SCHEMA, error.message) from error
    except (orjson.JSONEncodeError, RecursionError) as error:
        wrong = "the schema is nested too deep, or has numbers beyond 64 bits"
        raise RequestRefused(DeadLetterReason.BAD_SCHEMA, wrong) from error


def _embedding_result(
    request: Request, line_id: str, vector: bytes, prompt_tokens: int, model: str
) -> Result:
    # a number that is none makes every sum with it one, and finite ones cannot overflow a double
    if not vector or not math.isfinite(sum(array("f", vector))):
        wrong = "the vector has numbers that are not finite" if vector else "the vector is empty"
        return make_dead(request, line_id, DeadLetterReason.INVALID_OUTPUT, wrong)
    encoded = base64.b64encode(vector).decode()
    body = {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": encoded}],
        "model": model,
        "usage": _usage(prompt_tokens, 0),
    }
    return Result(line_id, request.custom_id, response=Response(200, line_id, body))


def _completion(custom_id: str, text: str, answer: Answer, model: str) -> dict[str, Any]:
    return {
        "id": f"cmpl-{custom_id}",
        "object": "text_completion",
        "created": 0,
        "model": model,
        "choices": [
            {"index": 0, "text": text, "logprobs": None, "finish_reason": answer.finish_reason}
        ],
        "usage": _usage(answer.prompt_tokens, answer.completion_tokens),
    }


def _chat_completion(custom_id: str, content: str, answer: Answer, model: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{custom_id}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content},
                "finish_reason": answer.finish_reason,
            }
        ],
        "usage": _usage(answer.prompt_tokens, answer.completion_tokens),
    }


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _what_is_wrong(content: str, schema: dict[str, Any] | None) -> str | None:
    """Why an answer breaks its schema, without quoting it; None when it does not."""
    if schema is None:
        return None
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        return f"not JSON: {error.msg} at character {error.pos}"
    try:
        validator = _validator(orjson.dumps(schema, option=orjson.OPT_SORT_KEYS))
        broken = next(validator.iter_errors(value), None)
    except (Unresolvable, RecursionError) as error:
        return f"the schema cannot be followed ({type(error).__name__})"
    if broken is None:
        return None
    return f"breaks {broken.validator} of the schema at {broken.json_path}"


@lru_cache(maxsize=64)
def _validator(schema: bytes) -> Any:
    """One compiled validator per schema: a job has one, not one per row."""
    parsed = orjson.loads(schema)
    cls = validator_for(parsed, default=jsonschema.Draft202012Validator)
    cls.check_schema(parsed)
    return cls(parsed)
