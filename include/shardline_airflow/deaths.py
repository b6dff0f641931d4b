"""What dead shards died of, read from their attempts: the brakes ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shardline.attempts import read_attempts
from shardline.rows import Attempt, ShardEntry
from shardline.runners.waves import DeathClass, ShardEnd, death_of

if TYPE_CHECKING:
    from shardline.plan import Plan
    from shardline.store import Store

_POD_CLASSES = frozenset(death.value for death in DeathClass)
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Death:
    """How a shard died, and how many of its requests have no end."""

    end: ShardEnd
    rows: int


def read_death(store: Store, plan: Plan, entry: ShardEntry, generation: int) -> Death:
    """The death of one shard by its attempts of this generation."""
    return fold_death(entry, read_attempts(store, plan.layout, entry.shard, generation))


def fold_death(entry: ShardEntry, attempts: Sequence[Attempt]) -> Death:
    """The last attempt says what it was; the best one how many rows are committed."""
    if not attempts:
        return Death(ShardEnd(_NEVER, DeathClass.VANISHED), entry.requests)
    last = max(attempts, key=lambda a: a.attempt)
    death = _death_of(last)
    at = datetime.fromisoformat(last.ended_at or last.started_at)
    committed = max(a.resumed_rows + a.counts.results + a.counts.dead for a in attempts)
    return Death(ShardEnd(at, death), max(0, entry.requests - committed))


def _death_of(last: Attempt) -> DeathClass:
    if last.pod_outcome is not None and last.pod_outcome.value in _POD_CLASSES:
        return DeathClass(last.pod_outcome.value)
    return death_of(last.exit_code)


def done_ends(store: Store, plan: Plan) -> list[ShardEnd]:
    """When each shard with results got them."""
    return [ShardEnd(o.modified, None) for o in store.list(plan.layout.results_prefix)]
