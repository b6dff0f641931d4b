"""One client of the Kubernetes API for all triggers of a triggerer.

A trigger that had its own would make a new connection for each look: the client drops one that was idle
for 15 s. These handshakes were half of what a look cost the triggerer, and the server has its part of them.

A client is made anew now and then, and after every failure: a token may be short-lived, a connection
broken. The old one is closed when the last call that uses it has ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

RENEWED_S = 600.0

Connect = Callable[[], AbstractAsyncContextManager[Any]]


@dataclass
class _Client:
    api: Any
    made_at: float
    closing: AsyncExitStack
    calls: int = 0
    is_retired: bool = False


@dataclass
class SharedClient:
    """The client of one event loop for one Airflow connection, open while somebody holds it."""

    _holders: int = 0
    _client: _Client | None = None
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Keep it open between calls. The last who holds it closes it."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders and self._client is not None:
                await self._retire(self._client)

    @asynccontextmanager
    async def use(self, connect: Connect) -> AsyncIterator[Any]:
        """The API client for one call. What fails inside makes the next call connect anew."""
        client = await self._current(connect)
        client.calls += 1
        try:
            yield client.api
        except Exception:
            client.is_retired = True
            raise
        finally:
            client.calls -= 1
            if client.is_retired or not self._holders:
                await self._retire(client)

    async def _current(self, connect: Connect) -> _Client:
        async with self._making:
            client = self._client
            if client is not None and time.monotonic() - client.made_at > RENEWED_S:
                await self._retire(client)
            if self._client is None or self._client.is_retired:
                closing = AsyncExitStack()
                api = await closing.enter_async_context(connect())
                self._client = _Client(api, time.monotonic(), closing)
            return self._client

    async def _retire(self, client: _Client) -> None:
        client.is_retired = True
        if self._client is client:
            self._client = None
        if not client.calls:
            await client.closing.aclose()


_ByLoop = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, SharedClient]]
_shared: _ByLoop = WeakKeyDictionary()


def shared_client(conn_id: str) -> SharedClient:
    """That of the running event loop."""
    return _shared.setdefault(asyncio.get_running_loop(), {}).setdefault(conn_id, SharedClient())
