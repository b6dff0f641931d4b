"""Wait for work that somebody may tell us to stop waiting for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def unless(told: asyncio.Event, work: Coroutine[Any, Any, None], limit_s: float) -> bool:
    """Wait for `work` to end; False when we were told to stop first, and it is cancelled.

    Raises:
        TimeoutError: neither, in `limit_s`; it is cancelled, too.
    """
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(told.wait())
    try:
        await asyncio.wait({working, waiting}, timeout=limit_s, return_when="FIRST_COMPLETED")
        if working.done():
            working.result()
            return True
    finally:
        waiting.cancel()
        working.cancel()
    if not told.is_set():
        raise TimeoutError
    return False
