"""An executor whose shards cost nothing, so that what is left to measure is Airflow's scheduler.

A dispatched `infer_shard` ends at the executor's next heartbeat: its result appears in the store, and
its row in the database says success, without a process. Every other task runs as it does in earnest.

Its shard is found by the run's name: a wave's by `run_waves`, anything else's from the first shard on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import text

from shardline.plan import read_plan
from shardline.runners.waves import plan_waves
from shardline.shards.manifest import read_shards
from shardline.store import open_store
from shardline_airflow.executor import TrackedLocalExecutor

ROOT = "SHARDLINE_ROOT"  # here a folder
TASK = "infer_shard"
PROCESSES = 8
RUN_ID = re.compile(r"(?P<job>.+?)(-w(?P<wave>\d+))?-g\d+")
FINISH = text(
    "update task_instance set state = 'success', start_date = now(), end_date = now(), duration = 0,"
    " hostname = 'simulated' where id = any(cast(:ids as uuid[]))"
)


class SimulatedShards(TrackedLocalExecutor):
    """See the module's docstring. As many slots as `parallelism` says, but few processes."""

    def start(self) -> None:
        super().start()
        self._simulated: list[Any] = []

    def _process_workloads(self, workload_list: Sequence[Any]) -> None:
        simulated = [
            w for w in workload_list if getattr(getattr(w, "ti", None), "task_id", "") == TASK
        ]
        for workload in simulated:
            self.queued_tasks.pop(workload.key)
            self.running.add(workload.key)
        self._simulated += simulated
        if real := [w for w in workload_list if w not in simulated]:
            super()._process_workloads(real)

    def sync(self) -> None:
        super().sync()
        ended, self._simulated = self._simulated, []
        for workload in ended:
            result_of(workload.ti.run_id, workload.ti.map_index).touch()
        if ended:
            with create_session() as session:
                session.execute(FINISH, {"ids": [str(workload.ti.id) for workload in ended]})
        for workload in ended:
            self.change_state(workload.key, TaskInstanceState.SUCCESS)

    def _spawn_workers_with_gc_freeze(self, spawn_number: int) -> None:
        room = PROCESSES - len(self.workers)
        super()._spawn_workers_with_gc_freeze(max(0, min(spawn_number, room)))


def result_of(run_id: str, map_index: int) -> Path:
    """The file whose being there says that a shard of a fresh job is done."""
    found = RUN_ID.fullmatch(run_id)
    assert found, run_id
    folder, names = shards_of(found["job"])
    first = plan_waves(len(names))[int(found["wave"])].lo if found["wave"] else 0
    return folder / f"{names[first + map_index]}.jsonl"


@cache
def shards_of(job_id: str) -> tuple[Path, list[str]]:
    root = os.environ[ROOT]
    store = open_store(root)
    plan = read_plan(store, job_id)
    names = [entry.shard for entry in read_shards(store, plan)]
    folder = (Path(root) / plan.layout.results(names[0])).parent
    folder.mkdir(parents=True, exist_ok=True)
    return folder, names
