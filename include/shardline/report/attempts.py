"""What all attempts of a job did together, folded from their records.

An attempt that wrote no end vanished: its rows are in segments, its seconds are not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from shardline.attempts import read_progress
from shardline.reasons import AttemptEnd
from shardline.report.figures import Span, Trouble, WorkFigures
from shardline.rows import Attempt, EngineMetrics, Seconds

if TYPE_CHECKING:
    from shardline.plan import Plan
    from shardline.store import Store

VANISHED = "vanished"
_MAX_SPANS = 5_000
_READERS = 16
_FINE = (AttemptEnd.DONE, AttemptEnd.DRAINED, AttemptEnd.CANCELLED)
_MAX_TROUBLES, _SHOWN_CHARACTERS = 5, 500


def read_attempts(store: Store, plan: Plan) -> list[Attempt]:
    """All attempt records of the job, in the order of their start."""
    listed = [o.path for o in store.list(plan.layout.attempts_prefix)]
    with ThreadPoolExecutor(_READERS) as pool:
        found = list(pool.map(store.read, listed))
    attempts = [msgspec.json.decode(content, type=Attempt) for content in found]
    return sorted(attempts, key=lambda a: (a.started_at, a.attempt))


def read_last_words(store: Store, plan: Plan, attempts: Iterable[Attempt]) -> dict[str, str]:
    """When each attempt that wrote no end spoke last, if it spoke at all."""
    spoken = {}
    for a in attempts:
        if a.ended_at is None:
            said = read_progress(store, plan.layout.progress(a.shard, a.attempt))
            if said is not None:
                spoken[a.attempt] = said.at
    return spoken


def fold_attempts(attempts: Sequence[Attempt], last_words: Mapping[str, str]) -> WorkFigures | None:
    """The figures of all attempts; None when there was none.

    Args:
        attempts: in the order of their start.
        last_words: attempt → ISO moment of its last progress object, for those without an end.
    """
    if not attempts:
        return None
    start = _moment(attempts[0].started_at)
    ends = {a.attempt: a.ended_at or last_words.get(a.attempt) for a in attempts}
    wall_s = max(_since(start, end or a.started_at) for a in attempts for end in [ends[a.attempt]])
    ahead = sum(a.counts.ahead for a in attempts)
    rows = sum(a.counts.results + a.counts.dead for a in attempts) + ahead
    prompt = sum(a.counts.prompt_tokens for a in attempts)
    completion = sum(a.counts.completion_tokens for a in attempts)
    return WorkFigures(
        attempts=len(attempts),
        by_end=dict(sorted(Counter(_how(a) for a in attempts).items())),
        seconds=_seconds(attempts),
        rows=rows,
        rows_ahead=ahead,
        prompt_tokens=prompt,
        completion_tokens=completion,
        engine_restarts=sum(a.counts.engine_restarts for a in attempts),
        rows_per_s=rows / wall_s if wall_s > 0 else None,
        prompt_tokens_per_s=prompt / wall_s if wall_s > 0 else None,
        completion_tokens_per_s=completion / wall_s if wall_s > 0 else None,
        metrics=_metrics(attempts),
        spans=[_span(a, start, ends[a.attempt]) for a in attempts[:_MAX_SPANS]],
        hosts=len({a.node or a.host for a in attempts}),
        troubles=_troubles(attempts),
    )


def _troubles(attempts: Iterable[Attempt]) -> list[Trouble]:
    """The most frequent ways to end badly; an attempt that drained or was cancelled did as told."""
    found: dict[tuple[str, str], list[Attempt]] = {}
    for a in attempts:
        if a.end not in _FINE:
            kind = (_how(a), _said(a)[:_SHOWN_CHARACTERS])
            found.setdefault(kind, []).append(a)
    ranked = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        Trouble(end, message, len(group), group[-1].shard, group[-1].attempt)
        for (end, message), group in ranked[:_MAX_TROUBLES]
    ]


def _how(attempt: Attempt) -> str:
    """By the worker's own word, else by what was seen of its pod."""
    return str(attempt.end or attempt.pod_outcome or VANISHED)


def _said(attempt: Attempt) -> str:
    """What the worker said of its end, else what was seen of it."""
    if attempt.pod_outcome is not None and attempt.end is None:
        return " ".join(filter(None, [attempt.pod_outcome.sentence, attempt.message]))
    if attempt.message or attempt.exit_code is None:
        return attempt.message or "Nobody saw its end."
    if attempt.exit_code < 0:
        return f"Killed by signal {-attempt.exit_code}."
    return attempt.end.sentence if attempt.end else f"Ended with exit code {attempt.exit_code}."


def finished_at(attempts: Iterable[Attempt]) -> str | None:
    """When the last attempt ended."""
    return max((a.ended_at for a in attempts if a.ended_at), default=None)


def _seconds(attempts: Iterable[Attempt]) -> Seconds:
    total = Seconds()
    for a in attempts:
        for name in Seconds.__struct_fields__:
            setattr(total, name, getattr(total, name) + getattr(a.seconds, name))
    return total


def _metrics(attempts: Sequence[Attempt]) -> EngineMetrics:
    def gathered(name: str, fold: Callable[[list[int]], int]) -> int | None:
        values = [v for a in attempts if (v := getattr(a.metrics, name)) is not None]
        return fold(values) if values else None

    return EngineMetrics(
        mean_running=_weighted(attempts, "mean_running"),
        kv_cache_usage=_weighted(attempts, "kv_cache_usage"),
        max_num_seqs=gathered("max_num_seqs", max),
        preemptions=gathered("preemptions", sum),
        prefix_cache_queries=gathered("prefix_cache_queries", sum),
        prefix_cache_hits=gathered("prefix_cache_hits", sum),
        engine_steps=gathered("engine_steps", sum),
        peak_rss_mb=gathered("peak_rss_mb", max),
    )


def _weighted(attempts: Sequence[Attempt], name: str) -> float | None:
    """The mean over attempts, each counted for as long as it worked."""
    known = [
        (value, max(a.seconds.useful + a.seconds.tail + a.seconds.ahead, 1e-9))
        for a in attempts
        if (value := getattr(a.metrics, name)) is not None
    ]
    return sum(v * w for v, w in known) / sum(w for _, w in known) if known else None


def _span(attempt: Attempt, start: datetime, end: str | None) -> Span:
    return Span(
        shard=attempt.shard,
        attempt=attempt.attempt,
        start_s=round(_since(start, attempt.started_at), 3),
        end_s=round(_since(start, end), 3) if end else None,
        end=str(attempt.end) if attempt.end else None,
        rows=attempt.counts.results + attempt.counts.dead,
    )


def _moment(iso: str) -> datetime:
    return datetime.fromisoformat(iso)


def _since(start: datetime, iso: str) -> float:
    # attempts of several machines: a clock that is behind must not make a negative time
    return max(0.0, (_moment(iso) - start).total_seconds())
