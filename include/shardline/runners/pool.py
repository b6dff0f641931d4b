"""Whether Airflow's pool has the size that waves are opened by. Pure: counts in, a line out.

A task of Airflow 3.3 cannot read a pool. But who is in it and who waits for it can be counted.
"""

from __future__ import annotations

from dataclasses import dataclass

_PATIENCE = 5
"""Looks in a row with free slots and shards that wait: slots are free for a moment all the time."""


@dataclass
class PoolWatch:
    """Looks at the pool now and then; says each thing once."""

    name: str
    slots: int
    _idle: int = 0
    _is_told: bool = False

    def look(self, running: int, waiting: int) -> str | None:
        """What to tell the user, if anything.

        Args:
            running: tasks that hold a slot, of all jobs.
            waiting: tasks that could start if they got one.
        """
        self._idle = self._idle + 1 if waiting and running < self.slots else 0
        if self._is_told or (running <= self.slots and self._idle < _PATIENCE):
            return None
        self._is_told = True
        if running > self.slots:
            return (
                f"{running} pods at once, and the setting says {self.slots}: the pool {self.name} is"
                " larger, or does not include deferred tasks. Set both alike: waves are opened by the"
                " setting, so that now the fleet may idle"
            )
        return (
            f"{running} pods at once, and the setting says {self.slots}, while {waiting} shards wait:"
            f" the pool {self.name} is smaller, or Airflow may not run so many tasks. Set both alike"
        )
