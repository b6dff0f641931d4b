"""What each request of a whole job ended as, over the job and the replays that followed it.

A chain is the parent, then each published replay that the next one started from, then the replay
that is asked about; most jobs are a chain of one. A request's end is the parent's line in `results`,
until a later link has another for it: what that link harvested, or its own line. A result is never
replaced (PROTOCOL 19).

The shards of the parent are walked in their order. A replay's shards were cut in the same order, so
of each link only those are held in memory that have requests of the current shard.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec

from shardline.errors import JobNotReady, ObjectNotFound
from shardline.plan import read_plan
from shardline.results.dead_letters import DeadEnd, read_dead_ends
from shardline.results.lines import Ended, Reader, ShardResults, read_results, without_output
from shardline.rows import ShardEntry
from shardline.segments import Segments
from shardline.shards.manifest import read_shards

if TYPE_CHECKING:
    from shardline.layout import JobLayout
    from shardline.plan import Plan
    from shardline.store import Store

T = TypeVar("T")
_Load = Callable[["Store", "JobLayout", str, Path], T]
"""Makes something of one shard of a job; the folder is scratch space."""


class ReplayCut(msgspec.Struct, frozen=True):
    """`replay.json`: what a replay runs, and what it does not have to."""

    shards: list[ShardEntry]
    ranges: list[tuple[int, int]]
    """Of each shard: the first and the last of the parent's shards (numbers) it has requests of."""
    dead: int
    """Requests without a result when it was cut: harvested + requests to run + untouched."""
    harvested: int
    untouched: int

    @property
    def requests(self) -> int:
        return sum(entry.requests for entry in self.shards)


class Replayed(msgspec.Struct, frozen=True):
    """What became of the dead letters that a replay started from."""

    dead: int = 0
    harvested: int = 0
    results: int = 0
    still_dead: int = 0
    untouched: int = 0

    def __add__(self, other: Replayed) -> Replayed:
        mine, its = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Replayed(*(a + b for a, b in zip(mine, its, strict=True)))

    def differences(self, cut: ReplayCut) -> list[str]:
        """Where the lines and the plan of the replay disagree."""
        pairs = (
            ("dead letters to start from", self.dead, cut.dead),
            ("harvested results", self.harvested, cut.harvested),
            ("requests that were run", self.results + self.still_dead, cut.requests),
            ("untouched dead letters", self.untouched, cut.untouched),
        )
        return [f"{mine} {what}, {its} planned" for what, mine, its in pairs if mine != its]


class WholeShard(NamedTuple):
    """A shard of the parent with the ends that its requests have at the end of the chain."""

    results: ShardResults
    replayed: Replayed
    """What the last link did; all zero where it is the parent itself."""


@dataclass(frozen=True)
class Link:
    """One job of a chain, its shards, and the parent's shards (numbers) that each of them covers."""

    plan: Plan
    shards: list[ShardEntry]
    ranges: list[tuple[int, int]]


class Chain:
    """The links of a job, oldest first. Its methods are called with numbers that only rise."""

    def __init__(self, store: Store, plan: Plan, read_output: Reader = without_output) -> None:
        self._store = store
        self.links = _read_links(store, plan)
        self.shards = self.links[0].shards
        """Those of the whole job: what is merged and published."""
        self.use(read_output)
        self._dead = [_Window(store, link, read_dead_ends) for link in self.links]
        self._late = [_Window(store, link, _late_lines) for link in self.links]

    def use(self, read_output: Reader) -> None:
        """Read answers in this way from now on."""

        def load(store: Store, layout: JobLayout, shard: str, scratch: Path) -> ShardResults:
            return read_results(store.fetch(layout.results(shard), scratch), read_output)

        self._read_output = read_output
        self._results = [_Window(self._store, link, load) for link in self.links]

    def read(self, number: int) -> WholeShard:
        """The ends of a shard's requests. Raises what `read_results` raises."""
        (whole,) = self._results[0].at(number)
        ended, lost, replayed = dict(whole.ended), whole.lost_values, Replayed()
        for link, window in zip(self.links[1:], self._results[1:], strict=True):
            replayed = self._replace(link, number, ended, window.at(number))
            lost += sum(found.lost_values for found in window.from_here(number))
        return WholeShard(ShardResults(ended, whole.doubled, lost), replayed)

    def dead_ends(self, number: int, names: Collection[str]) -> dict[str, DeadEnd]:
        """Why these requests of a shard have no result, by the latest word on each."""
        ends: dict[str, DeadEnd] = {}
        for window in self._dead:
            for found in window.at(number):
                ends |= {name: found[name] for name in names if name in found}
        return ends

    def late_lines(self, number: int, names: Collection[str]) -> dict[str, bytes]:
        """Results in segments of requests that have none in `results`: a worker was late.

        Each line names, beside what a result line has, the job whose worker it was.
        """
        lines: dict[str, bytes] = {}
        for window in self._late:
            for found in window.at(number):
                lines |= {name: found[name] for name in names if name in found}
        return lines

    def _replace(
        self, link: Link, number: int, ended: dict[str, Ended], found: list[ShardResults]
    ) -> Replayed:
        """Put a replay's ends in the place of the dead ones that it started from."""
        dead = dead_names(ended)
        if not dead:
            return Replayed()
        shard = self.shards[number].shard
        harvested = read_harvest(self._store, link.plan.layout, shard, self._read_output)
        counts = dict.fromkeys(Replayed.__struct_fields__, 0) | {"dead": len(dead)}
        for name in dead:
            end = next((f.ended[name] for f in found if name in f.ended), None)
            if name in harvested:
                ended[name] = harvested[name]
                counts["harvested"] += 1
            elif end is not None:
                ended[name] = end._replace(job_id=link.plan.job_id)
                counts["results" if end.reason is None else "still_dead"] += 1
            else:
                counts["untouched"] += 1
        return Replayed(**counts)


def dead_names(ended: dict[str, Ended]) -> list[str]:
    """Requests without a result, in the order of their shard."""
    return [name for name, end in ended.items() if end.reason is not None]


def read_cut(store: Store, plan: Plan) -> ReplayCut:
    """What a replay runs. Raises JobNotReady before it is cut."""
    found = store.read_or_none(plan.layout.replay_cut)
    if found is None:
        raise JobNotReady(f"job {plan.job_id}: its shards are not cut yet")
    return msgspec.json.decode(found, type=ReplayCut)


def read_harvest(
    store: Store, layout: JobLayout, shard: str, read_output: Reader
) -> dict[str, Ended]:
    """The ends that a replay harvested for a shard of its parent."""
    with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
        try:
            path = store.fetch(layout.harvest(shard), Path(scratch))
        except ObjectNotFound:  # nothing was dead there
            return {}
        return read_results(path, read_output).ended


def _read_links(store: Store, plan: Plan) -> list[Link]:
    plans = [plan]
    while (replay := plans[-1].replay) is not None:
        plans.append(read_plan(store, replay.base))
    return [_read_link(store, plan) for plan in reversed(plans)]


def _read_link(store: Store, plan: Plan) -> Link:
    shards = read_shards(store, plan)
    own = [(number, number) for number in range(len(shards))]
    return Link(plan, shards, own if plan.replay is None else read_cut(store, plan).ranges)


def _late_lines(store: Store, layout: JobLayout, shard: str, scratch: Path) -> dict[str, bytes]:
    dead = read_dead_ends(store, layout, shard, scratch)
    if not dead:
        return {}
    segments = Segments(store, layout, shard, scratch)
    segments.refresh()
    lines: dict[str, bytes] = {}
    for name in dead:
        line = segments.lines.get(name)
        if line is not None and not line.is_dead:
            with segments.files[line.segment].open("rb") as file:
                file.seek(line.start)
                raw = file.read(line.size).rstrip()
            lines[name] = raw[:-1] + b',"job_id":"' + layout.job_id.encode() + b'"}\n'
    return lines


class _Window(Generic[T]):
    """What `load` makes of those shards of a link that have requests of the current one."""

    def __init__(self, store: Store, link: Link, load: _Load[T]) -> None:
        self._store, self._link, self._load = store, link, load
        self._firsts = [first for first, _ in link.ranges]
        self._lasts = [last for _, last in link.ranges]
        self._held: dict[int, T] = {}

    def at(self, number: int) -> list[T]:
        """For the shard of the whole job with this number."""
        wanted = range(bisect_left(self._lasts, number), bisect_right(self._firsts, number))
        self._held = {n: held for n, held in self._held.items() if n in wanted}
        for n in wanted:
            if n not in self._held:
                self._held[n] = self._load_one(self._link.shards[n].shard)
        return [self._held[n] for n in wanted]

    def from_here(self, number: int) -> list[T]:
        """Those whose first requests are of this one, so that each is named once."""
        self.at(number)
        return [held for n, held in self._held.items() if self._firsts[n] == number]

    def _load_one(self, shard: str) -> T:
        with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
            return self._load(self._store, self._link.plan.layout, shard, Path(scratch))
