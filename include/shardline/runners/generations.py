"""Starts and resumes of a job, numbered: `generations/{n}.json` is put by whoever opens one.

PROTOCOL 20 and 21. The highest number is current. A start joins the current generation while its
run lives, else it opens the next; two that start at once agree, since a put has one winner.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from shardline.layout import JobLayout
from shardline.plan import timestamp
from shardline.store import Put, Store


class Generation(msgspec.Struct, frozen=True):
    """One start or resume of a job, and the run that opened it."""

    run_id: str
    opened_at: str


def open_generation(store: Store, job_id: str, run_id: str, is_alive: Callable[[str], bool]) -> int:
    """Join the current generation while the run that opened it lives, else open the next.

    A cancelled generation is never joined by another run: its workers would stop at once.

    Args:
        run_id: names this run; the same run asking again gets its own generation.
        is_alive: whether the run of an id still runs.
    """
    layout = JobLayout(job_id)
    current = current_generation(store, job_id)
    while True:
        if current and _may_join(store, layout, current, run_id, is_alive):
            return current
        current += 1
        mine = Generation(run_id, timestamp(datetime.now(UTC)))
        if store.put_once(layout.generation(current), msgspec.json.encode(mine)) is not Put.TAKEN:
            return current


def current_generation(store: Store, job_id: str) -> int:
    """The highest generation; 0 before the first start."""
    listed = store.list(JobLayout(job_id).generations)
    return max((_number(found.path) for found in listed), default=0)


def read_generation(store: Store, job_id: str, n: int) -> Generation:
    """Who opened a generation."""
    content = store.read(JobLayout(job_id).generation(n))
    return msgspec.json.decode(content, type=Generation)


def cancel_generation(store: Store, job_id: str, generation: int, who: str = "") -> None:
    """Ask every worker of a generation to stop; they look at each segment. Twice is once."""
    store.put_once(JobLayout(job_id).cancel(generation), who.encode() or b"cancelled")


def is_cancelled(store: Store, job_id: str, generation: int) -> bool:
    """Whether somebody asked this generation to stop."""
    return store.exists(JobLayout(job_id).cancel(generation))


def _may_join(
    store: Store, layout: JobLayout, n: int, run_id: str, is_alive: Callable[[str], bool]
) -> bool:
    owner = read_generation(store, layout.job_id, n).run_id
    if owner == run_id:
        return True
    return not is_cancelled(store, layout.job_id, n) and is_alive(owner)


def _number(path: str) -> int:
    return int(path.rsplit("/", 1)[-1].removesuffix(".json"))
