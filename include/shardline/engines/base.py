"""What a worker asks of an engine. There are two: vllm, and the stub that tests and demos use.

An engine is started once, answers many requests at the same time, and is thrown away when it dies:
the next one is a new object.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from shardline.errors import PermanentError, ShardlineError, TransientError
from shardline.reasons import DeadLetterReason
from shardline.rows import EngineMetrics, Request

log = logging.getLogger(__name__)
T = TypeVar("T")


class EngineDied(TransientError):
    """The engine is gone, and with it every request that it had."""


class EngineWontStart(PermanentError):
    """The engine did not come up on this machine."""


class RequestRefused(ShardlineError):
    """One request cannot be done; the engine and all others go on."""

    def __init__(self, reason: DeadLetterReason, message: str) -> None:
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True)
class Answer:
    """The end of a request. With choices, `text` is the bare word; an embedding has none."""

    text: str
    finish_reason: str
    """stop or length; anything else is no answer."""
    prompt_tokens: int
    completion_tokens: int
    embedding: bytes | None = None
    """A vector: float32 numbers, little-endian."""


class Engine(Protocol):
    """An engine. What `prepare` makes of a request is opaque to others."""

    max_num_seqs: int
    """Requests that it runs at the same time."""

    async def fetch(self) -> None:
        """Have the model on this machine, however long that takes.

        Raises ModelNotFound, StoreUnavailable, StoreRefused, or SickMachine for a full disk.
        """

    async def start(self) -> None:
        """Be ready for requests. Raises EngineWontStart, or WrongInput for bad engine_args."""

    def prepare(self, requests: Sequence[Request]) -> list[Any]:
        """Check and translate requests, in their order; a RequestRefused stands for a bad one.

        Called on a thread beside the loop, one call at a time, for many requests at once.
        """

    async def generate(self, custom_id: str, prepared: Any) -> Answer:
        """Run it. Raises RequestRefused, or EngineDied on every request in flight."""

    def beat(self) -> int:
        """A number that changes as long as the engine gets anywhere."""

    def metrics(self) -> EngineMetrics:
        """What it can say of itself."""

    async def stop(self) -> None:
        """End its processes, dead or hung ones too, in about two seconds."""


def choices_of(body: dict[str, Any]) -> list[str] | None:
    """The words of a request that must be answered by one of them, else None."""
    form = (body.get("response_format") or {}).get("json_schema") or {}
    if form.get("name") != "choice":
        return None
    words = form.get("schema", {}).get("properties", {}).get("choice", {}).get("enum")
    return words if isinstance(words, list) else None


def schema_of(body: dict[str, Any]) -> dict[str, Any] | None:
    """The JSON Schema that the answer must have, else None."""
    form = (body.get("response_format") or {}).get("json_schema") or {}
    schema = form.get("schema")
    return schema if isinstance(schema, dict) else None


def or_refused(prepare: Callable[[Request], T], request: Request) -> T | RequestRefused:
    """What `prepare` makes of one request. Whatever a document does to us is its own dead letter."""
    try:
        return prepare(request)
    except RequestRefused as refused:
        return refused
    except Exception as error:
        log.exception("request %s cannot be prepared", request.custom_id)
        return RequestRefused(DeadLetterReason.ENGINE_ERROR, f"{type(error).__name__}: {error}")
