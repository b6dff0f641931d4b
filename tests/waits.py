"""The one way in which a test waits for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(
    what: str,
    is_so: Callable[[], object],
    timeout_s: float = 240,
    while_it: Callable[[], object] = lambda: True,
) -> None:
    """Poll until `is_so`: for longer than a machine stands still, and never for ever.

    Raises:
        AssertionError: not in time, or `while_it` holds no longer: who was to do it has ended.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        is_going_on = while_it()  # asked first: the last thing that it did counts
        if is_so():
            return
        assert is_going_on, f"no {what}, and nobody is left to bring it"
        assert time.monotonic() < deadline, f"no {what} after {timeout_s} s"
        time.sleep(0.05)
