"""Which faults a campaign shoots, at what, and when. Pure: a number and a seed in, a deck out.

The same seed gives the same deck in the same order. Which shard a fault hits, and after how many
rows, depends on the machine's speed as well, so a run prints every shot as it falls.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What is done."""

    SIGTERM = "sigterm"
    SIGTERM_TWICE = "sigterm_twice"
    SIGKILL = "sigkill"
    ENGINE_EXIT = "engine_exit"  # os._exit in the engine's process
    ENGINE_OOM = "engine_oom"  # SIGKILL of the engine's process, as the kernel does it
    ENGINE_SEGV = "engine_segv"
    ENGINE_HANG = "engine_hang"
    STORE_REFUSES = "store_refuses"  # connections are cut and refused for a while
    STORE_HANGS = "store_hangs"  # connections stay open and nothing moves for a while

    @property
    def hits_engine(self) -> bool:
        return self in _ENGINE

    @property
    def hits_store(self) -> bool:
        return self in _STORE


class Moment(StrEnum):
    """When in the life of an attempt."""

    START = "start"  # before the engine is up
    MIDDLE = "middle"  # rows are in flight
    DRAIN = "drain"  # after a SIGTERM
    PUT = "put"  # as the results are put: before they are there, or before the worker knows


_ENGINE = frozenset({Kind.ENGINE_EXIT, Kind.ENGINE_OOM, Kind.ENGINE_SEGV, Kind.ENGINE_HANG})
_STORE = frozenset({Kind.STORE_REFUSES, Kind.STORE_HANGS})
_ANYWHERE = {Moment.START: 2, Moment.MIDDLE: 6, Moment.DRAIN: 2, Moment.PUT: 2}
_WEIGHTS: dict[Kind, dict[Moment, int]] = {
    # a signal during the drain is the second one: a kind of its own
    Kind.SIGTERM: {Moment.START: 2, Moment.MIDDLE: 6, Moment.PUT: 2},
    Kind.SIGTERM_TWICE: {Moment.START: 2, Moment.MIDDLE: 7, Moment.PUT: 1},
    Kind.SIGKILL: _ANYWHERE,
    Kind.STORE_REFUSES: _ANYWHERE,
    Kind.STORE_HANGS: _ANYWHERE,
    # when the results are put there is no engine any more
    **{kind: {Moment.START: 1, Moment.MIDDLE: 7, Moment.DRAIN: 2} for kind in sorted(_ENGINE)},
    # given up after SHARDLINE_ENGINE_START_S: minutes in which nothing else can fall
    Kind.ENGINE_HANG: {Moment.MIDDLE: 8, Moment.DRAIN: 2},
}


@dataclass(frozen=True)
class Fault:
    """One card. `share` and `lead` (0 to 1) say how far into its moment it falls."""

    n: int
    kind: Kind
    moment: Moment
    share: float
    lead: float

    @property
    def is_late(self) -> bool:
        """At the put: whether the object is there already, and only the reply is missing."""
        return self.share >= 0.5


def deal(count: int, seed: int, among: Collection[Kind] = tuple(Kind)) -> list[Fault]:
    """`count` faults in random order, of all these kinds as evenly as it goes."""
    chance = random.Random(seed)
    kinds: list[Kind] = []
    while len(kinds) < count:
        kinds += chance.sample(list(among), len(among))
    return [_draw(chance, n, kind) for n, kind in enumerate(kinds[:count], 1)]


def _draw(chance: random.Random, n: int, kind: Kind) -> Fault:
    weights = _WEIGHTS[kind]
    (moment,) = chance.choices(list(weights), list(weights.values()))
    return Fault(n, kind, moment, chance.random(), chance.random())


class Deck:
    """The faults that are still to fall; several attempts draw from it at once."""

    def __init__(self, faults: Collection[Fault]) -> None:
        self._left = deque(sorted(faults, key=lambda fault: fault.n))
        self._lock = threading.Lock()
        self._is_cleared = False

    def __len__(self) -> int:
        return len(self._left)

    def take(self, moments: Collection[Moment], but: Collection[Kind] = ()) -> Fault | None:
        """The next fault of one of these moments, `but` none of these kinds."""
        with self._lock:
            for fault in self._left:
                if fault.moment in moments and fault.kind not in but:
                    self._left.remove(fault)
                    return fault
        return None

    def clear(self) -> None:
        """No further fault is to fall."""
        with self._lock:
            self._left.clear()
            self._is_cleared = True

    def put_back(self, fault: Fault) -> None:
        """Its moment never came: the next attempt draws it."""
        with self._lock:
            if not self._is_cleared:
                self._left.appendleft(fault)
