"""The store, with patience: an outage makes us wait instead of ending the work."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from shardline.errors import StoreRefused, StoreUnavailable

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

PATIENCE_S = 600.0
"""How long an outage is sat out where no setting says it: as SHARDLINE_STORE_PATIENCE_S is for workers,
since what they sit out must not end the run around them."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0


class Outage:
    """One outage of the store, from the first call that failed: when to call again, and when no more."""

    def __init__(self, patience_s: float) -> None:
        self._until = time.monotonic() + patience_s
        self._patience_s = patience_s
        self._pause_s = 0.0

    def pause_s(self, error: StoreUnavailable | StoreRefused) -> float:
        """Seconds until the next call; longer from one to the next.

        Args:
            error: what the last call failed with, which is raised when patience has ended.
        """
        left = self._until - time.monotonic()
        if left <= 0:
            raise error
        if not self._pause_s:
            text, kind = "store: waiting for it for up to %.0f s: %s: %s", type(error).__name__
            log.warning(text, self._patience_s, kind, error)
        self._pause_s = min(max(_FIRST_PAUSE_S, self._pause_s * 2), _LONGEST_PAUSE_S)
        return min(self._pause_s, left)


class Patience:
    """Calls the store again until it answers, for at most `patience_s` an outage.

    Calls run in threads, so that a slow store never stops generation.
    """

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
        outage, me = None, object()
        try:
            while True:
                try:
                    return await asyncio.to_thread(work, *args, **kwargs)
                except StoreUnavailable as error:
                    outage = outage or Outage(self._patience_s)
                    pause_s = outage.pause_s(error)
                    self._down.add(me)
                await asyncio.sleep(pause_s)
        finally:
            self._down.discard(me)


def outlast(ask: Callable[[], T], stop: threading.Event | None = None) -> T:
    """Ask the store again until it answers, for those who have nothing else to do.

    Args:
        stop: set by whoever wants us to end; no outage is waited for any longer then.

    Raises:
        StoreUnavailable: the outage outlasted PATIENCE_S, or we are to stop.
    """
    outage, stop = None, stop or threading.Event()
    while True:
        try:
            return ask()
        except StoreUnavailable as error:
            outage = outage or Outage(PATIENCE_S)
            if stop.wait(outage.pause_s(error)):
                raise
