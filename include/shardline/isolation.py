"""Which document kills engines: events in, what to feed next out. Nothing here does any I/O.

PROTOCOL 10 in one place. A row goes from the open queue to groups to being alone, never back:

    open ──engine down, or in flight at two vanished attempts──▶ group of 16
    group ──engine down, or its attempt vanished──▶ alone
    alone ──engine down, or two attempts vanished with it──▶ accused
    accused ──a known-good request passes on the next engine──▶ convicted

Rows in flight at one vanished attempt run last in the open queue, without blame; a row that was
alone in one is run alone once more: machines are lost at such moments too. After a vanished attempt
a few short rows go first and are committed: documents that kill their worker at once must not use
up the shard's attempts by keeping every one of them from finishing anything. A conviction that
an earlier attempt recorded already is final at once; new ones are held back until the attempt ends
well, since three of them say that the machine is sick and not the documents.

Known limitation: an attempt that still lives looks like one that vanished. Two workers on one shard
may so suspect each other's rows; it costs them small groups, and a result beats an error later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from shardline.reasons import DeadLetterReason
from shardline.rows import Attempt

ALONE_AT_MOST = 2
"""Vanished attempts with nothing but this row in their engine, before it is accused."""

_FIRST = 4


class Stage(Enum):
    """How far a row is from the crowd."""

    FIRST = "first"
    OPEN = "open"
    GROUP = "group"
    ALONE = "alone"


class Down(Enum):
    """How an engine went down; the value is the reason of a dead letter."""

    DIED = DeadLetterReason.ENGINE_KILLER
    STALLED = DeadLetterReason.STALLED


@dataclass(frozen=True)
class Batch:
    """Rows to feed together: the first few and the crowd through the window, groups all at once."""

    rows: tuple[int, ...]
    stage: Stage


@dataclass(frozen=True)
class History:
    """What earlier attempts on this shard say about the rows that are not done."""

    last: frozenset[int] = frozenset()
    grouped: frozenset[int] = frozenset()
    alone: frozenset[int] = frozenset()
    accused: frozenset[int] = frozenset()
    convicted: frozenset[int] = frozenset()
    has_vanished: bool = False


def read_history(attempts: Iterable[Attempt], is_done: Collection[int]) -> History:
    """Fold the records of earlier attempts; those without an end had rows in flight."""
    times: Counter[int] = Counter()
    times_alone: Counter[int] = Counter()
    alone: set[int] = set()
    convicted: set[int] = set()
    has_vanished = False
    for attempt in attempts:
        convicted.update(attempt.convictions)
        if attempt.end is not None:
            continue
        has_vanished = True
        times.update(_in_flight(attempt))
        if attempt.suspects:
            alone.update(row for row in attempt.suspects[-1] if row not in is_done)
            times_alone.update(attempt.suspects[-1] if len(attempt.suspects[-1]) == 1 else ())
    left = {row: n for row, n in times.items() if row not in is_done}
    accused = {row for row in alone if times_alone[row] >= ALONE_AT_MOST}
    return History(
        last=frozenset(row for row, n in left.items() if n == 1),
        grouped=frozenset(row for row, n in left.items() if n > 1) - alone - accused,
        alone=frozenset(alone - accused),
        accused=frozenset(accused),
        convicted=frozenset(convicted.difference(is_done)),
        has_vanished=has_vanished,
    )


def _in_flight(attempt: Attempt) -> set[int]:
    """Rows that a vanished attempt may have had in its engine: groups come after all others."""
    if attempt.suspects:
        return set(attempt.suspects[-1])
    return {row for first, last in attempt.fed for row in range(first, last + 1)}


def as_ranges(rows: Iterable[int]) -> list[tuple[int, int]]:
    """Closed ranges that hold exactly these row numbers, as `Attempt.fed` has them."""
    ranges: list[tuple[int, int]] = []
    for row in sorted(set(rows)):
        if ranges and ranges[-1][1] == row - 1:
            ranges[-1] = (ranges[-1][0], row)
        else:
            ranges.append((row, row))
    return ranges


@dataclass
class Isolation:
    """The queues of one attempt. `rows` are those left to do, in the order of feeding."""

    rows: Sequence[int]
    history: History
    group_size: int = 16
    sick_at: int = 3
    held: dict[int, Down] = field(default_factory=dict)
    """New convictions, not committed yet."""

    def __post_init__(self) -> None:
        past = self.history
        self._accused = {r: Down.DIED for r in self.rows if r in past.accused}
        self._alone = [
            r for r in self.rows if r in past.alone | past.convicted and r not in self._accused
        ]
        apart = set(self._accused) | set(self._alone)
        self._groups = [r for r in self.rows if r in past.grouped and r not in apart]
        apart |= set(self._groups)
        crowd = [r for r in self.rows if r not in apart]
        # a stable sort: what was in flight once goes to the end and keeps its order there
        self._open = dict.fromkeys(sorted(crowd, key=lambda r: r in past.last))
        fresh = [r for r in self._open if r not in past.last] or list(self._open)
        self._first = fresh[-_FIRST:] if past.has_vanished else []

    def next_batch(self) -> Batch | None:
        """What to feed now; None when every row has an end or is convicted."""
        if self._open:
            if self._first:
                return Batch(tuple(self._first), Stage.FIRST)
            return Batch(tuple(self._open), Stage.OPEN)
        if self._groups:
            return Batch(tuple(self._groups[: self.group_size]), Stage.GROUP)
        if self._alone:
            return Batch((self._alone[0],), Stage.ALONE)
        return None

    def ended(self, row: int) -> None:
        """A row has a result or a dead letter of its own."""
        self._open.pop(row, None)
        for queue in (self._first, self._groups, self._alone):
            if row in queue:
                queue.remove(row)

    def went_down(self, batch: Batch, in_flight: Collection[int], how: Down) -> None:
        """The engine died or hung while these rows of the batch were in it."""
        suspects = [row for row in batch.rows if row in in_flight]
        for row in suspects:
            self.ended(row)
        if batch.stage in (Stage.FIRST, Stage.OPEN):
            self._groups += suspects
        elif batch.stage is Stage.GROUP:
            self._alone += suspects
        else:
            self._accused |= dict.fromkeys(suspects, how)

    @property
    def has_accused(self) -> bool:
        return bool(self._accused)

    @property
    def is_over(self) -> bool:
        """Whether every row has an end or is convicted; the accused still wait for a judge."""
        return self.next_batch() is None and not self._accused

    def engine_is_good(self) -> tuple[dict[int, Down], bool]:
        """A known-good request has passed: convict the accused.

        Returns:
            The convictions that are final now, and whether there are so many new ones that the
            machine must be suspected instead.
        """
        accused, self._accused = self._accused, {}
        repeated = {r: how for r, how in accused.items() if r in self.history.convicted}
        self.held |= {r: how for r, how in accused.items() if r not in repeated}
        return repeated, len(self.held) >= self.sick_at
