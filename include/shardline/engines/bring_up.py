"""Bring an engine up: first its model onto the machine, then the engine itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from shardline.engines.base import Engine, EngineWontStart
from shardline.errors import StoreUnavailable
from shardline.interruptible import unless
from shardline.worker_settings import WorkerSettings

_SAY_S = 60.0


async def bring_up(
    engine: Engine,
    limits: WorkerSettings,
    told: asyncio.Event,
    say: Callable[[], Awaitable[None]],
) -> bool:
    """True when it is up; False when we were told to stop first.

    Args:
        say: called every minute while the model comes, which may take an hour: whoever watches us must
            not give us up. What it raises ends the wait.

    Raises:
        StoreUnavailable: the model did not come in time. A slow line is no fault of this machine.
        EngineWontStart: the engine did not.
    """
    fetch_s, start_s = limits.model_fetch_s, limits.engine_start_s
    try:
        is_here = await unless(told, _fetch(engine, say), fetch_s)
    except TimeoutError as error:
        raise StoreUnavailable(f"the model was not here after {fetch_s:.0f} s") from error
    try:
        return is_here and await unless(told, engine.start(), start_s)
    except TimeoutError as error:
        raise EngineWontStart(f"not up after {start_s:.0f} s") from error


async def _fetch(engine: Engine, say: Callable[[], Awaitable[None]]) -> None:
    fetching = asyncio.create_task(engine.fetch())
    try:
        while not (await asyncio.wait({fetching}, timeout=_SAY_S))[0]:
            await say()
        fetching.result()
    finally:
        fetching.cancel()
