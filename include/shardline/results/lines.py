"""The lines of `results/{shard}.jsonl`, as merge reads them: what each request ended as."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shardline.errors import LawBroken, ValidationFailed
from shardline.job import JobFile
from shardline.results.json_types import conform


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
    message: _Message
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice]
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
        ValidationFailed: an answer that is no JSON where the job asks for it.
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
    """How the text of an answer becomes `output`: as it is, a choice unwrapped, JSON typed."""
    if job.output.choices is not None:
        return _read_choice
    if job.output.json_schema is None:
        return lambda content: (content, 0)
    return lambda content: conform(msgspec.json.decode(content or ""), kind)


def without_output(_: str | None) -> tuple[Any, int]:
    """For those who count ends and need no answer."""
    return None, 0


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
    body = line.response.body
    if len(body.choices) != 1:
        found = len(body.choices)
        raise LawBroken(f"{path.name} line {number}: expected one answer, found {found}")
    answer, usage = body.choices[0], body.usage or _Usage()
    try:
        output, lost = read_output(answer.message.content)
    except msgspec.MsgspecError as error:
        raise ValidationFailed(
            f"{path.name} line {number}: the answer to {line.custom_id} is not JSON; "
            "its runner should have made it a dead letter (invalid_output)"
        ) from error
    tokens = (usage.prompt_tokens, usage.completion_tokens)
    return Ended(output, answer.finish_reason, *tokens, None, line.job_id), lost
