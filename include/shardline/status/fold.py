"""What a job is doing now, folded from what its objects say.

A shard is done when its results exist, whatever its progress objects claim: those are a worker's
latest word, and a worker may have been gone for long. So a word older than `STALE_S` adds no speed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from shardline.reasons import ShardState
from shardline.rows import EngineMetrics, Progress, ShardEntry
from shardline.status.words import count_text, duration_text, rate_text

STALE_S = 300.0
"""A worker speaks at every segment, so at least once a minute; five silent minutes are a lost one."""
STARTING_S = 1_800.0
"""A worker whose engine starts is silent for as long as that may take by default
(SHARDLINE_ENGINE_START_S)."""
STARTING, ENDED = "starting", "ended"


class WorkerStatus(msgspec.Struct, frozen=True):
    """One live worker and its figures."""

    shard: str
    attempt: str
    state: str
    age_s: float
    """Seconds since it last spoke."""
    rows_done: int
    rows_total: int
    rows_dead: int
    rows_per_s: float
    prompt_tokens_per_s: float
    completion_tokens_per_s: float
    metrics: EngineMetrics

    @property
    def tokens_per_s(self) -> float:
        return self.prompt_tokens_per_s + self.completion_tokens_per_s


class JobStatus(msgspec.Struct, frozen=True):
    """A job's shards by state, its rows and its speed. A row here is one request of a shard file."""

    job_id: str
    at: str
    prepared: bool
    """Whether the manifest exists; before that there are no shards to count."""
    shards: dict[str, int]
    """Every ShardState and how many shards are in it."""
    rows_total: int
    rows_done: int
    """Results and dead letters: all rows of done shards, committed rows of the others."""
    rows_dead: int
    """Dead letters that the workers told of; the merge report has the final count."""
    rows_per_s: float
    prompt_tokens_per_s: float
    completion_tokens_per_s: float
    eta_s: float | None
    """None when nothing is left, or nobody works."""
    running: list[WorkerStatus]

    @property
    def shards_total(self) -> int:
        return sum(self.shards.values())

    @property
    def shards_done(self) -> int:
        return self.shards[ShardState.DONE]

    @property
    def tokens_per_s(self) -> float:
        return self.prompt_tokens_per_s + self.completion_tokens_per_s

    @property
    def shards_starting(self) -> int:
        """Running shards whose engines are not ready: they have no speed yet."""
        ready = {w.shard for w in self.running if w.state != STARTING}
        return len({w.shard for w in self.running} - ready)

    @property
    def is_done(self) -> bool:
        return self.prepared and self.shards_done == self.shards_total

    def line(self) -> str:
        """The status in one line, for logs."""
        if not self.prepared:
            return f"job {self.job_id}: being prepared, no shards yet"
        said = [f"{self.shards_done:,} of {count_text(self.shards_total, 'shard')} done"]
        counted = {word: self.shards[state] for state, word in _WORDS}
        counted["running"] -= self.shards_starting
        counted["starting"] = self.shards_starting
        said += [f"{n:,} {word}" for word, n in counted.items() if n]
        said.append(f"{self.rows_done:,} of {count_text(self.rows_total, 'row')}")
        if self.rows_dead:
            said.append(count_text(self.rows_dead, "dead letter"))
        if self.rows_per_s:
            said.append(f"{rate_text(self.rows_per_s)} rows/s")
        if self.eta_s is not None:
            said.append(f"eta {duration_text(self.eta_s)}")
        return f"job {self.job_id}: " + ", ".join(said)


_WORDS = (
    (ShardState.RUNNING, "running"),
    (ShardState.FAILED, "stopped"),
    (ShardState.DEAD, "dead"),
)


def fold_status(
    job_id: str,
    shards: Sequence[ShardEntry] | None,
    done: Collection[str],
    progress: Iterable[Progress],
    now: datetime,
    dead: Collection[str] = (),
) -> JobStatus:
    """Fold the objects of a job into its status.

    Args:
        shards: all shards of the manifest; None while the job is being prepared.
        done: shards whose results exist.
        progress: the progress objects that were read, in any order; those of unknown shards count
            for nothing.
        dead: shards that have used their attempts up, where the caller knows.
    """
    spoken: dict[str, list[Progress]] = defaultdict(list)
    for p in progress:
        spoken[p.shard].append(p)
    states: Counter[str] = Counter(dict.fromkeys(ShardState, 0))
    rows_done = rows_dead = 0
    running: list[WorkerStatus] = []
    for entry in shards or ():
        words = spoken.get(entry.shard, [])
        live = [] if entry.shard in done else [p for p in words if is_live(p, now)]
        states[_state(entry.shard, done, dead, words, live)] += 1
        rows_done += entry.requests if entry.shard in done else _committed(entry, words)
        rows_dead += max((p.rows_dead for p in words), default=0)
        running += [_worker(p, now) for p in sorted(live, key=lambda p: p.attempt)]
    total = sum(entry.requests for entry in shards or ())
    rate = sum(w.rows_per_s for w in running)
    return JobStatus(
        job_id=job_id,
        at=now.astimezone(UTC).isoformat(timespec="milliseconds"),
        prepared=shards is not None,
        shards=dict(states),
        rows_total=total,
        rows_done=rows_done,
        rows_dead=rows_dead,
        rows_per_s=rate,
        prompt_tokens_per_s=sum(w.prompt_tokens_per_s for w in running),
        completion_tokens_per_s=sum(w.completion_tokens_per_s for w in running),
        eta_s=(total - rows_done) / rate if rate and rows_done < total else None,
        running=running,
    )


def is_live(progress: Progress, now: datetime) -> bool:
    """Whether its worker has not ended and spoke in the last five minutes."""
    return progress.state != ENDED and age_s(progress, now) <= STALE_S


def may_live(progress: Progress, now: datetime) -> bool:
    """The same for who must be sure that it does not: it may start for long, too."""
    is_starting = progress.state == STARTING and age_s(progress, now) <= STARTING_S
    return is_starting or is_live(progress, now)


def age_s(progress: Progress, now: datetime) -> float:
    """Seconds since its worker spoke."""
    # another machine's clock may be ahead of ours
    return max(0.0, (now - datetime.fromisoformat(progress.at)).total_seconds())


def _state(
    shard: str,
    done: Collection[str],
    dead: Collection[str],
    words: list[Progress],
    live: list[Progress],
) -> ShardState:
    if shard in done:
        return ShardState.DONE
    if live:
        return ShardState.RUNNING
    if shard in dead:
        return ShardState.DEAD
    return ShardState.FAILED if words else ShardState.WAITING


def _committed(entry: ShardEntry, words: list[Progress]) -> int:
    # attempts of one shard read each other's segments, so their counts overlap: never a sum
    return min(entry.requests, max((p.rows_done for p in words), default=0))


def _worker(p: Progress, now: datetime) -> WorkerStatus:
    return WorkerStatus(
        shard=p.shard,
        attempt=p.attempt,
        state=p.state,
        age_s=age_s(p, now),
        rows_done=p.rows_done,
        rows_total=p.rows_total,
        rows_dead=p.rows_dead,
        rows_per_s=p.rows_per_s,
        prompt_tokens_per_s=p.prompt_tokens_per_s,
        completion_tokens_per_s=p.completion_tokens_per_s,
        metrics=p.metrics,
    )
