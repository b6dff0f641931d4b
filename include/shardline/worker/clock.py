"""Where an attempt's wall time goes: exactly one label at any moment, so the parts add up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from shardline.rows import Seconds

Label = Literal["start", "useful", "tail", "stall", "restart", "drain"]


class Clock:
    """Adds the time since the last switch to the label that was on. `drain` is never left."""

    def __init__(self, seconds: Seconds, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._monotonic = seconds, monotonic
        self._label: Label = "start"
        self._since = monotonic()

    def switch(self, label: Label) -> None:
        moment = self._monotonic()
        self._add(self._label, moment - self._since)
        self._since = moment
        if self._label != "drain":
            self._label = label

    def move(self, label: Label, seconds: float) -> None:
        """Some of the time so far was spent otherwise, as we know only now."""
        self.switch(self._label)
        self._add(self._label, -seconds)
        self._add(label, seconds)

    def _add(self, label: Label, seconds: float) -> None:
        setattr(self._seconds, label, getattr(self._seconds, label) + seconds)
