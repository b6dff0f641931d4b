"""One client for all triggers: made once, made anew after a failure, never closed under a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from shardline_airflow import pod_client
from shardline_airflow.pod_client import SharedClient, shared_client


@dataclass
class Connections:
    """What was opened and what of it was closed, by number."""

    opened: int = 0
    closed: list[int] = field(default_factory=list)

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[int]:
        self.opened += 1
        number = self.opened
        try:
            yield number
        finally:
            self.closed.append(number)


def test_all_who_hold_it_share_one_client_and_the_last_closes_it() -> None:
    connect, shared = Connections(), SharedClient()

    async def trigger(held: asyncio.Barrier) -> None:
        async with shared.hold():
            await held.wait()
            for _ in range(3):
                async with shared.use(connect) as client:
                    assert client == 1
                    await asyncio.sleep(0)
                assert not connect.closed

    async def run() -> None:
        held = asyncio.Barrier(20)
        async with shared.hold():
            await asyncio.gather(*(trigger(held) for _ in range(20)))
        assert connect.closed == [1]

    asyncio.run(run())


def test_after_a_failure_the_next_call_connects_anew_and_the_others_end_on_the_old_one() -> None:
    connect, shared = Connections(), SharedClient()

    async def run() -> None:
        async with shared.hold():
            async with shared.use(connect) as slow:
                with pytest.raises(ConnectionError):
                    async with shared.use(connect) as broken:
                        raise ConnectionError
                async with shared.use(connect) as new:
                    assert (slow, broken, new) == (1, 1, 2)
                assert not connect.closed
            assert connect.closed == [1]
        assert connect.closed == [1, 2]

    asyncio.run(run())


def test_a_client_is_made_anew_before_its_token_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    connect, shared = Connections(), SharedClient()
    monkeypatch.setattr(pod_client, "RENEWED_S", 0.0)

    async def run() -> None:
        async with shared.hold():
            async with shared.use(connect) as first:
                pass
            await asyncio.sleep(0.01)
            async with shared.use(connect) as second:
                assert (first, second, connect.closed) == (1, 2, [1])

    asyncio.run(run())


def test_each_event_loop_and_each_connection_has_its_own() -> None:
    async def mine(conn_id: str) -> SharedClient:
        return shared_client(conn_id)

    async def both() -> tuple[SharedClient, SharedClient, SharedClient]:
        return await mine("a"), await mine("a"), await mine("b")

    one, same, other = asyncio.run(both())
    assert one is same
    assert one is not other
    assert asyncio.run(mine("a")) is not one
