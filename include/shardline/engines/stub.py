"""An engine without a model: answers depend on the request alone, and markers in a text make it fail.

It enters by the same door as the real one, so a test of resuming, draining or blame runs the code
that runs in production. Tokens are words, and an embedding is a unit vector that the request's
fingerprint decides. engine_args: `latency_s` a request, `fetch_s` of the model,
`start_s`, `max_num_seqs`, `max_model_len`, `dimension` of an embedding, and `start_fails`.

Markers: `[stub:die]` the engine dies, `[stub:hang]` it hangs, `[stub:kill]` the whole worker is
killed, `[stub:sick]` it dies and so does every engine after it, `[stub:error=REASON]` the request
is refused, `[stub:invalid]` the answer breaks choices or schema, or is no vector, `[stub:slow]` it
takes twenty times as long.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shardline.engines.base import (
    Answer,
    EngineDied,
    EngineWontStart,
    RequestRefused,
    choices_of,
    or_refused,
    schema_of,
)
from shardline.engines.openai_body import parse_body, parse_completion, parse_embedding
from shardline.errors import WrongInput
from shardline.kinds import FORMS
from shardline.reasons import DeadLetterReason
from shardline.rows import EngineMetrics, Request

_REASONS = {reason.value: reason for reason in DeadLetterReason}
_MARKER = re.compile(r"\[stub:(\w+)(?:=(\w+))?\]")


class StubArgs(BaseModel):
    """The stub's engine_args."""

    model_config = ConfigDict(extra="forbid")

    latency_s: float = 0.0
    fetch_s: float = 0.0
    start_s: float = 0.0
    max_num_seqs: int = 16
    max_model_len: int = 1_000_000
    dimension: int = Field(8, ge=1)
    start_fails: bool = False


@dataclass(frozen=True)
class _Prepared:
    body: dict[str, Any]
    limit: int | None
    words: list[str]
    markers: dict[str, str]
    dimension: int | None = None
    """Of the vector, for an embedding."""


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

    async def fetch(self) -> None:
        await asyncio.sleep(self._args.fetch_s)

    async def start(self) -> None:
        await asyncio.sleep(self._args.start_s)
        if self._args.start_fails:
            raise EngineWontStart("stub: start_fails is set")

    def prepare(self, requests: Sequence[Request]) -> list[_Prepared | RequestRefused]:
        return [or_refused(self._prepare, request) for request in requests]

    def _prepare(self, request: Request) -> _Prepared:
        text, limit, dimension = self._asked(request)
        markers = dict(_MARKER.findall(text))
        if "error" in markers:
            raise RequestRefused(_REASONS[markers["error"]], "stub: told so by the text")
        words = text.split()
        if not words:
            raise RequestRefused(DeadLetterReason.EMPTY_PROMPT, "stub: no word in what is asked")
        if len(words) > self._args.max_model_len:
            raise RequestRefused(DeadLetterReason.TOO_LONG, f"stub: {len(words)} words")
        return _Prepared(request.body, limit, words, markers, dimension)

    def _asked(self, request: Request) -> tuple[str, int | None, int | None]:
        """The text, and how many tokens or numbers are to come of it."""
        if request.url == FORMS["embedding"].url:
            embedding = parse_embedding(request.body)
            return embedding.input, None, embedding.dimensions or self._args.dimension
        if request.url == FORMS["completion"].url:
            completion = parse_completion(request.body)
            return completion.prompt, completion.limit, None
        chat = parse_body(request.body)
        return "\n".join(m["content"] for m in chat.messages), chat.limit, None

    async def generate(self, custom_id: str, prepared: _Prepared) -> Answer:
        async with self._slots:
            self._misbehave(prepared.markers)
            await asyncio.sleep(self._args.latency_s * (20 if "slow" in prepared.markers else 1))
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
    if prepared.dimension is not None:
        vector = _unit_vector(custom_id, prepared.dimension)
        if "invalid" in prepared.markers:
            vector[0] = math.nan
        return Answer("", "stop", len(prepared.words), 0, vector.tobytes())
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


def _unit_vector(custom_id: str, dimension: int) -> array[float]:
    drawn = array("I", blake3(custom_id.encode()).digest(4 * dimension))
    numbers = [n / 2**31 - 1 for n in drawn]
    norm = math.hypot(*numbers) or 1.0
    return array("f", [n / norm for n in numbers])


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
