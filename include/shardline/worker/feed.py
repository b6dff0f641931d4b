"""Rows on their way to an engine: recorded and translated one stretch before anybody takes them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from shardline.engines.base import Answer, Engine, EngineDied, RequestRefused
from shardline.reasons import DeadLetterReason
from shardline.rows import Request
from shardline.shard_file import Row

log = logging.getLogger(__name__)

_CLOSED_S = 0.05

End = Answer | RequestRefused


class Item(NamedTuple):
    """A row of a shard, its request, and what the engine made of it (RequestRefused: nothing)."""

    row: Row
    request: Request
    prepared: Any


class Feed:
    """Rows in order; `reserve` is told of each before it is fed, and says if it is to be (PROTOCOL 9)."""

    def __init__(
        self,
        rows: Sequence[Row],
        engine: Engine,
        stretch: int,
        reserve: Callable[[list[Row]], Awaitable[list[Row]]],
        is_open: Callable[[], bool],
    ) -> None:
        self._rows, self._engine, self._most = deque(rows), engine, stretch
        self._stretch = min(64, stretch)  # small at first: the engine waits for it
        self._reserve, self._is_open = reserve, is_open
        self._ready: deque[Item] = deque()
        self._next: asyncio.Task[list[Item]] | None = None
        self._lock = asyncio.Lock()
        self.is_closed = False

    @property
    def is_empty(self) -> bool:
        return not (self._rows or self._ready or self._next)

    async def take(self) -> Item | None:
        """The next row; None when there is none, or feeding has ended. Waits while it is paused."""
        async with self._lock:
            while not (self.is_closed or self._is_open()):  # noqa: ASYNC110 (one lane alone polls)
                await asyncio.sleep(_CLOSED_S)
            while not (self._ready or self.is_closed) and (next_one := self._next or self._begin()):
                # a lane that is cancelled here must not cancel the write: a torn-off thread could
                # land an old record on top of the attempt's last one
                self._next = next_one
                self._ready.extend(await asyncio.shield(next_one))
                self._next = self._begin()
            return self._ready.popleft() if self._ready and not self.is_closed else None

    def _begin(self) -> asyncio.Task[list[Item]] | None:
        rows = [self._rows.popleft() for _ in range(min(self._stretch, len(self._rows)))]
        self._stretch = min(2 * self._stretch, self._most)
        return asyncio.create_task(self._make(rows)) if rows else None

    async def _make(self, rows: list[Row]) -> list[Item]:
        return await asyncio.to_thread(self._prepare, await self._reserve(rows))

    def _prepare(self, rows: list[Row]) -> list[Item]:
        requests = [row.request for row in rows]
        return list(map(Item, rows, requests, self._engine.prepare(requests)))

    async def close(self) -> None:
        """No lane gets another row; a write that has begun is waited for.

        Should it fail, its rows were never fed; a store that is down is noticed by the next call.
        """
        self.is_closed = True
        if self._next:
            await asyncio.gather(self._next, return_exceptions=True)


async def run_item(engine: Engine, item: Item) -> End:
    """Run one row. Raises EngineDied; whatever else a document does to us is its dead letter."""
    if isinstance(item.prepared, RequestRefused):
        return item.prepared
    try:
        return await engine.generate(item.request.custom_id, item.prepared)
    except RequestRefused as refused:
        return refused
    except EngineDied:
        raise
    except Exception as error:
        log.exception("request %s failed", item.request.custom_id)
        return RequestRefused(DeadLetterReason.ENGINE_ERROR, f"{type(error).__name__}: {error}")
