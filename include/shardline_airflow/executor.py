"""LocalExecutor with one slot per dispatched workload.

Airflow 3.3's LocalExecutor has two holes that cost a mapped, deferring dag its tasks:

* It never adds to `self.running`, so `[core] parallelism` caps nothing. Everything is queued at
  once, and what waits longer than `task_queued_timeout` fails with an expired token.
* The result that a task leaves when it defers may be read after its trigger has queued it again.
  The scheduler then takes the old "success" for a task that was killed, and fails or repeats it.

Here a workload holds its slot from dispatch until its own result arrives, and of several results
outstanding for one key only the last counts.

What it does not do: when a worker process of the executor itself is killed (not the task below it),
no result ever arrives, and its slot is lost until the scheduler restarts. The task instance is
still failed or retried by the scheduler's heartbeat timeout.

Use: AIRFLOW__CORE__EXECUTOR=shardline_airflow.executor.TrackedLocalExecutor
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from airflow.executors.local_executor import LocalExecutor

PRELOADED = ("shardline_airflow.gpu_operator", "shardline_airflow.wave_tasks", "pyarrow.parquet")
"""Each task's process is forked from ours: what it finds imported, it need not import. A shard in a pod
starts two of them, and what they need takes 1.5 CPU seconds to import."""


class TrackedLocalExecutor(LocalExecutor):
    """See the module's docstring."""

    def start(self) -> None:
        for name in PRELOADED:
            import_module(name)
        super().start()
        # workload key → dispatched and not yet answered
        self._outstanding: dict[Any, int] = {}

    def _process_workloads(self, workload_list: Sequence[Any]) -> None:
        for workload in workload_list:
            self._outstanding[workload.key] = self._outstanding.get(workload.key, 0) + 1
            self.running.add(workload.key)
        super()._process_workloads(workload_list)

    def change_state(
        self, key: Any, state: Any, info: Any = None, remove_running: bool = True
    ) -> None:
        """Pass on the result of the last dispatch of `key`; drop the ones before it."""
        if str(getattr(state, "value", state)) == "running":  # callbacks, connection tests
            super().change_state(key, state, info, remove_running=False)
            return
        left = self._outstanding.pop(key, 1) - 1
        if left > 0:
            self._outstanding[key] = left
            self.log.info("dropped stale result %s of %s: it was dispatched again", state, key)
            return
        super().change_state(key, state, info, remove_running=remove_running)
