"""The lines of `results/{shard}.jsonl`, as merge reads them: what each request ended as."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shardline.errors import LawBroken, ValidationFailed
from shardline.job import JobFile
from shardline.results.json_types import conform
from shardline.results.vectors import BadVector, decode_vector, dimension_of


class Ended(NamedTuple):
    """How one request ended: with an output, or with the reason of its dead letter."""

    output: Any
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    reason: str | None
    job_id: str | None = None
    """The job of the chain that ended it (see `chain`); None where it is the only one."""


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Vector(msgspec.Struct):
    embedding: str


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Body(msgspec.Struct):
    """A chat completion, a text completion or a list of embeddings, each with one answer."""

    choices: list[_Choice] = []
    data: list[_Vector] | None = None
    usage: _Usage | None = None


class _Response(msgspec.Struct):
    body: _Body


class _Error(msgspec.Struct):
    code: str


class _Line(msgspec.Struct):
    custom_id: str
    response: _Response | None = None
    error: _Error | None = None
    job_id: str | None = None


class _ChoiceAnswer(msgspec.Struct):
    choice: str


_LINE = msgspec.json.Decoder(_Line)
_CHOICE = msgspec.json.Decoder(_ChoiceAnswer)
Reader = Callable[[str | None], tuple[Any, int]]


class _Said(NamedTuple):
    content: str | None
    finish_reason: str | None
    completion_tokens: int | None


class ShardResults(NamedTuple):
    """The lines of one shard by request; `doubled` are ids that came more than once."""

    ended: dict[str, Ended]
    doubled: list[str]
    lost_values: int
    """Values of structured answers that the table's types could not hold."""


def read_results(path: Path, read_output: Reader) -> ShardResults:
    """Read a shard's results.

    Raises:
        LawBroken: a line that is neither a result nor an error.
        ValidationFailed: an answer that is no JSON where the job asks for it, or a vector of
            another length.
    """
    ended: dict[str, Ended] = {}
    doubled: list[str] = []
    lost_values = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            line = _decode(path, number, raw)
            if line.custom_id in ended:
                doubled.append(line.custom_id)
                continue
            ended[line.custom_id], lost = _end_of(path, number, line, read_output)
            lost_values += lost
    return ShardResults(ended, doubled, lost_values)


def output_reader(job: JobFile, kind: Any) -> Reader:
    """How an answer becomes `output`: text as it is, a choice unwrapped, JSON typed, a vector."""
    if job.kind == "embedding":
        return _vector_reader(dimension_of(kind))
    if job.output.choices is not None:
        return _read_choice
    if job.output.json_schema is None:
        return lambda content: (content, 0)
    return lambda content: conform(msgspec.json.decode(content or ""), kind)


def without_output(_: str | None) -> tuple[Any, int]:
    """For those who count ends and need no answer."""
    return None, 0


def _vector_reader(dimension: int | None) -> Reader:
    """Where the length is not known, the first vector of a file decides it for the others."""

    def read(content: str | None) -> tuple[Any, int]:
        nonlocal dimension
        vector = decode_vector(content, dimension)
        dimension = len(vector) // 4
        return vector, 0

    return read


def _read_choice(content: str | None) -> tuple[Any, int]:
    """The word alone. What is no such object stays as it is, and validation refuses it."""
    try:
        return _CHOICE.decode(content or "").choice, 0
    except msgspec.MsgspecError:
        return content, 0


def _decode(path: Path, number: int, raw: bytes) -> _Line:
    try:
        line = _LINE.decode(raw)
    except msgspec.MsgspecError as error:
        raise LawBroken(f"{path.name} line {number}: no result line ({error})") from error
    if (line.response is None) == (line.error is None):
        raise LawBroken(f"{path.name} line {number}: expected either a response or an error")
    return line


def _end_of(path: Path, number: int, line: _Line, read_output: Reader) -> tuple[Ended, int]:
    if line.error is not None:
        return Ended(None, None, None, None, line.error.code), 0
    assert line.response is not None
    said, usage = _said(path, number, line.response.body), line.response.body.usage or _Usage()
    try:
        output, lost = read_output(said.content)
    except BadVector as error:
        raise ValidationFailed(
            f"{path.name} line {number}: the vector of {line.custom_id} {error}"
        ) from error
    except msgspec.MsgspecError as error:
        raise ValidationFailed(
            f"{path.name} line {number}: the answer to {line.custom_id} is not JSON; "
            "its runner should have made it a dead letter (invalid_output)"
        ) from error
    tokens = (usage.prompt_tokens, said.completion_tokens)
    return Ended(output, said.finish_reason, *tokens, None, line.job_id), lost


def _said(path: Path, number: int, body: _Body) -> _Said:
    """The one answer of a response, whichever API gave it."""
    answers = body.choices if body.data is None else body.data
    if len(answers) != 1:
        found = len(answers)
        raise LawBroken(f"{path.name} line {number}: expected one answer, found {found}")
    answer, usage = answers[0], body.usage or _Usage()
    if isinstance(answer, _Vector):
        return _Said(answer.embedding, None, 0)
    if answer.message is None and answer.text is None:
        raise LawBroken(f"{path.name} line {number}: an answer without a message or a text")
    content = answer.text if answer.message is None else answer.message.content
    return _Said(content, answer.finish_reason, usage.completion_tokens)
