"""An engine without a model: answers depend on the request alone, and markers in a text make it fail.

It enters by the same door as the real one, so a test of resuming, draining or blame runs the code
that runs in production. Tokens are words. engine_args: `latency_s` a request, `start_s`,
`max_num_seqs`, `max_model_len`, and `start_fails`.

Markers: `[stub:die]` the engine dies, `[stub:hang]` it hangs, `[stub:kill]` the whole worker is
killed, `[stub:sick]` it dies and so does every engine after it, `[stub:error=REASON]` the request
is refused, `[stub:invalid]` the answer breaks choices or schema.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from blake3 import blake3
from pydantic import BaseModel, ConfigDict, ValidationError

from shardline.engines.base import (
    Answer,
    EngineDied,
    EngineWontStart,
    RequestRefused,
    choices_of,
    or_refused,
    schema_of,
)
from shardline.engines.openai_body import parse_body
from shardline.errors import WrongInput
from shardline.reasons import DeadLetterReason
from shardline.rows import EngineMetrics, Request

_REASONS = {reason.value: reason for reason in DeadLetterReason}
_MARKER = re.compile(r"\[stub:(\w+)(?:=(\w+))?\]")


class StubArgs(BaseModel):
    """The stub's engine_args."""

    model_config = ConfigDict(extra="forbid")

    latency_s: float = 0.0
    start_s: float = 0.0
    max_num_seqs: int = 16
    max_model_len: int = 1_000_000
    start_fails: bool = False


@dataclass(frozen=True)
class _Prepared:
    body: dict[str, Any]
    limit: int | None
    words: list[str]
    markers: dict[str, str]


class StubEngine:
    """See the module."""

    _machine_is_sick = False  # outlives the engine, as a broken machine does

    def __init__(self, engine_args: dict[str, Any]) -> None:
        try:
            self._args = StubArgs(**engine_args)
        except ValidationError as error:
            raise WrongInput(f"engine_args: {' '.join(str(error).split())}") from error
        self.max_num_seqs = self._args.max_num_seqs
        self._slots = asyncio.Semaphore(self.max_num_seqs)
        self._dead = asyncio.Event()
        self._is_hung = False
        self._ended = 0

    async def start(self) -> None:
        await asyncio.sleep(self._args.start_s)
        if self._args.start_fails:
            raise EngineWontStart("stub: start_fails is set")

    def prepare(self, requests: Sequence[Request]) -> list[_Prepared | RequestRefused]:
        return [or_refused(self._prepare, request) for request in requests]

    def _prepare(self, request: Request) -> _Prepared:
        body = request.body
        parameters = parse_body(body)
        text = "\n".join(message["content"] for message in parameters.messages)
        markers = dict(_MARKER.findall(text))
        if "error" in markers:
            raise RequestRefused(_REASONS[markers["error"]], "stub: told so by the text")
        words = text.split()
        if not words:
            raise RequestRefused(DeadLetterReason.EMPTY_PROMPT, "stub: no word in the messages")
        if len(words) > self._args.max_model_len:
            raise RequestRefused(DeadLetterReason.TOO_LONG, f"stub: {len(words)} words")
        return _Prepared(body, parameters.limit, words, markers)

    async def generate(self, custom_id: str, prepared: _Prepared) -> Answer:
        async with self._slots:
            self._misbehave(prepared.markers)
            await asyncio.sleep(self._args.latency_s)
            if self._is_hung:
                await self._dead.wait()
            if self._dead.is_set():
                raise EngineDied("stub: the engine is dead")
            self._ended += 1
            return _answer(custom_id, prepared)

    def _misbehave(self, markers: dict[str, str]) -> None:
        if "kill" in markers:
            os.kill(os.getpid(), signal.SIGKILL)
        if "sick" in markers:
            StubEngine._machine_is_sick = True
        if "die" in markers or StubEngine._machine_is_sick:
            self._dead.set()
        if "hang" in markers:
            self._is_hung = True

    def beat(self) -> int:
        return self._ended

    def metrics(self) -> EngineMetrics:
        return EngineMetrics(max_num_seqs=self.max_num_seqs, engine_steps=self._ended)

    async def stop(self) -> None:
        self._dead.set()


def _answer(custom_id: str, prepared: _Prepared) -> Answer:
    digest = int.from_bytes(blake3(custom_id.encode()).digest(8), "big")
    finish_reason = "stop"
    if "invalid" in prepared.markers:
        text = "stub: neither a choice nor JSON"
    elif choices := choices_of(prepared.body):
        text = choices[digest % len(choices)]
    elif schema := schema_of(prepared.body):
        text = orjson.dumps(_instance(schema, digest)).decode()
    else:
        words = prepared.words[: prepared.limit]
        finish_reason = "length" if len(words) < len(prepared.words) else "stop"
        text = " ".join(words)
    return Answer(text, finish_reason, len(prepared.words), len(text.split()))


def _instance(schema: dict[str, Any], digest: int) -> Any:
    """A value of a plain schema: objects, arrays, enums and scalars."""
    if "enum" in schema:
        return schema["enum"][digest % len(schema["enum"])]
    kind = schema.get("type", "object")
    if kind == "object":
        return {k: _instance(v, digest) for k, v in schema.get("properties", {}).items()}
    if kind == "array":
        return [_instance(schema.get("items", {"type": "null"}), digest)] * schema.get(
            "minItems", 1
        )
    low = schema.get("minimum", 0)
    return {
        "string": f"{digest:016x}",
        "integer": low,
        "number": float(low),
        "boolean": digest % 2 == 0,
        "null": None,
    }[kind]
