"""Our own stall timer: an engine that hangs says nothing, and waits for ever.

It rings when rows are in flight and, for `after_s`, neither a row ended nor the engine's beat
changed. The beat moves with each token, so a long answer is no stall.
"""

from __future__ import annotations


class StallTimer:
    """Moments are seconds of any one clock."""

    def __init__(self, after_s: float) -> None:
        self.after_s = after_s
        self._since = 0.0
        self._beat = 0

    @property
    def tick_s(self) -> float:
        """How often to look, so that it rings at most a tenth late."""
        return self.after_s / 10

    def restart(self, moment: float) -> None:
        """A row has ended, or none is in flight."""
        self._since = moment

    def has_rung(self, moment: float, beat: int) -> bool:
        if beat != self._beat:
            self._since, self._beat = moment, beat
        return moment - self._since >= self.after_s
