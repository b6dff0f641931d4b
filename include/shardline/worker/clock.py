"""Where an attempt's time goes: exactly one label at any moment, so the parts add up; and stalls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from shardline.rows import Seconds

_SHARE_OF_A_LOOK = 0.25

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
    It is to be looked at far more often than it rings: time between two looks counts up to a share, for
    a machine that was frozen or moved stood still with its engine, and that is no stall either.
    """

    def __init__(self, after_s: float) -> None:
        self.after_s, self._longest_look_s = after_s, after_s * _SHARE_OF_A_LOOK
        self._looked, self._silent_s, self._beat = 0.0, 0.0, 0

    def restart(self, moment: float) -> None:
        """A row has ended, or none is in flight."""
        self._looked, self._silent_s = moment, 0.0

    def has_rung(self, moment: float, beat: int) -> bool:
        if beat == self._beat:
            self._silent_s += min(moment - self._looked, self._longest_look_s)
        else:
            self._silent_s, self._beat = 0.0, beat
        self._looked = moment
        return self._silent_s >= self.after_s
