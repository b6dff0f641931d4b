"""Which generation a start of `run_waves` belongs to (PROTOCOL 21), in Airflow's terms.

A retry is the same start. Clearing is another one: Airflow raises `max_tries` then, and only then.
So a start is named by dag, run and `max_tries`, and whoever reads the name can ask whether it lives.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from shardline.runners.generations import current_generation, open_generation
from shardline_airflow.runs import DagRuns

if TYPE_CHECKING:
    from shardline.plan import Plan
    from shardline.runners.waves import Wave
    from shardline.store import Store

_START = re.compile(r"airflow:(?P<dag_id>[^:]+):(?P<run_id>.+):(?P<max_tries>\d+)")


class Start(NamedTuple):
    """One start or resume: the first try of a task, or the first after it was cleared."""

    dag_id: str
    run_id: str
    max_tries: int

    def __str__(self) -> str:
        return f"airflow:{self.dag_id}:{self.run_id}:{self.max_tries}"


def parse_start(owner: str) -> Start | None:
    """The start that opened a generation; None for one that Airflow did not open."""
    found = _START.fullmatch(owner)
    if found is None:
        return None
    return Start(found["dag_id"], found["run_id"], int(found["max_tries"]))


def start_of(ti: Any) -> Start:
    """The start that a running task instance belongs to."""
    return Start(ti.dag_id, ti.run_id, ti.max_tries)


def join_or_open(
    store: Store, plan: Plan, waves: Sequence[Wave], start: Start, runs: DagRuns
) -> int:
    """The generation to run in: the current one while it lives, else the next.

    It lives while one of its waves does, or the run of another start that may be about to open some.
    """
    current = current_generation(store, plan.job_id)
    names = [wave.run_id(plan.job_id, current) for wave in waves] if current else []

    def is_alive(owner: str) -> bool:
        if runs.count_living(names):
            return True
        other = parse_start(owner)
        is_me = other is None or other[:2] == start[:2]
        return other is not None and not is_me and DagRuns(other.dag_id).is_living(other.run_id)

    return open_generation(store, plan.job_id, str(start), is_alive)
