"""Wait for work that somebody may tell us to stop waiting for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

_SLICES = 4


async def unless(told: asyncio.Event, work: Coroutine[Any, Any, None], limit_s: float) -> bool:
    """Wait for `work` to end; False when we were told to stop first, and it is cancelled.

    While the machine stands still (frozen, moved) it is one slice of the limit that passes.

    Raises:
        TimeoutError: neither, in `limit_s`; it is cancelled, too.
    """
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(told.wait())
    try:
        for _ in range(_SLICES):
            both, slice_s = {working, waiting}, limit_s / _SLICES
            await asyncio.wait(both, timeout=slice_s, return_when="FIRST_COMPLETED")
            if working.done():
                working.result()
                return True
            if told.is_set():
                return False
    finally:
        waiting.cancel()
        working.cancel()
    raise TimeoutError
