"""Where an attempt's time goes: exactly one label at any moment, so the parts add up; and stalls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from shardline.rows import Seconds

Label = Literal["start", "useful", "tail", "stall", "restart", "drain", "ahead"]


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


class StallTimer:
    """Our own timer: an engine that hangs says nothing, and waits for ever.

    It rings when, for `after_s` of any one clock, neither a row ended nor the engine's beat changed
    (restart it while no row is in flight). The beat moves with each token: long answers are no stall.
    """

    def __init__(self, after_s: float) -> None:
        self.after_s = after_s
        self._since, self._beat = 0.0, 0

    def restart(self, moment: float) -> None:
        """A row has ended, or none is in flight."""
        self._since = moment

    def has_rung(self, moment: float, beat: int) -> bool:
        if beat != self._beat:
            self._since, self._beat = moment, beat
        return moment - self._since >= self.after_s
