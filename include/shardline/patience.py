"""The store, with patience: an outage makes us wait instead of ending the work.

Calls run in threads, so that a slow store never stops generation.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from shardline.errors import StoreUnavailable

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 15.0


class Patience:
    """Calls the store again until it answers, for at most `patience_s` an outage."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._down: set[object] = set()

    @property
    def is_up(self) -> bool:
        """False while any call waits for the store to come back."""
        return not self._down

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in a thread.

        Raises:
            StoreUnavailable: the outage outlasted our patience.
        """
        began, delay, me = time.monotonic(), _FIRST_DELAY_S, object()
        try:
            while True:
                try:
                    return await asyncio.to_thread(work, *args, **kwargs)
                except StoreUnavailable as error:
                    left = began + self._patience_s - time.monotonic()
                    if left <= 0:
                        raise
                    if me not in self._down:
                        log.warning("store: no answer, waiting for it: %s", error)
                    self._down.add(me)
                await asyncio.sleep(min(delay, left))
                delay = min(delay * 2, _LONGEST_DELAY_S)
        finally:
            self._down.discard(me)


def outlast(patience_s: float, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """One patient call, for those who have nothing else to do. Raises as `Patience.call` does."""
    return asyncio.run(Patience(patience_s).call(work, *args, **kwargs))
