"""Whether the first ends of a shard say that the job itself is wrong. Nothing here does any I/O."""

from __future__ import annotations

from shardline.errors import WrongInput
from shardline.reasons import DeadLetterReason
from shardline.rows import Result

_LIES_IN_JOB = frozenset(reason.value for reason in DeadLetterReason if reason.lies_in_job)


class EarlyEnds:
    """PROTOCOL 12: when the first `limit` ends are dead letters of one reason that lies in the job.

    Until that is clear nothing is committed: the errors of a wrong job must not outlive its repair.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._ends = limit, 0
        self._reason: str | None = None
        self.is_open = limit > 0

    def add(self, result: Result) -> None:
        """Count one end. Raises WrongInput when the last of the first rows ends like all before."""
        code = result.error.code if result.error else None
        if not self.is_open:
            return
        if code not in _LIES_IN_JOB or code != (self._reason or code):
            self.is_open = False
            return
        self._reason, self._ends = code, self._ends + 1
        if self._ends >= self._limit:
            why = result.error.message if result.error else ""
            raise WrongInput(f"the first {self._ends} requests all ended as {code}: {why}")
