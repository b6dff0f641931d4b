"""Dag runs as a task sees them: open one, ask how it is.

A task of Airflow 3 has no database and no password for the REST API. It talks to its supervisor,
which holds the task's own token. These messages are not declared public, so this is the only file
that knows them, and a test on a real Airflow holds it to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LIVING_STATES = ("queued", "running")


class DagRuns:
    """Runs of one dag. To be used inside a running task only."""

    def __init__(self, dag_id: str) -> None:
        self.dag_id = dag_id

    def open(self, run_id: str, conf: Mapping[str, Any]) -> bool:
        """Start a run; False when one of this name exists, whatever its state: it is joined."""
        from airflow.sdk.exceptions import ErrorType
        from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun

        answer = _ask(TriggerDagRun(dag_id=self.dag_id, run_id=run_id, conf=dict(conf)))
        if isinstance(answer, ErrorResponse):
            if answer.error is not ErrorType.DAGRUN_ALREADY_EXISTS:
                raise RuntimeError(f"{self.dag_id} {run_id}: {answer.error} {answer.detail}")
            return False
        return True

    def is_living(self, run_id: str) -> bool:
        return self.count_living([run_id]) == 1

    def count_living(self, run_ids: Sequence[str]) -> int:
        """How many of these runs are queued or running; unknown ones are not."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        if not run_ids:
            return 0
        return int(
            RuntimeTaskInstance.get_dr_count(
                self.dag_id, run_ids=list(run_ids), states=list(LIVING_STATES)
            )
        )

    def is_paused(self) -> bool:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        return bool(RuntimeTaskInstance.get_dag(self.dag_id).is_paused)

    def count_tasks(self, task_id: str, states: Sequence[str]) -> int:
        """How many instances of a task are in these states, in all runs."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        found = RuntimeTaskInstance.get_ti_count(
            self.dag_id, task_ids=[task_id], states=list(states)
        )
        return int(found)

    def task_states(self, run_id: str, task_ids: Sequence[str]) -> dict[str, str]:
        """State of each task that has one; a mapped one is `infer_shard_3`."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        states = RuntimeTaskInstance.get_task_states(
            self.dag_id, task_ids=list(task_ids), run_ids=[run_id]
        ).get(run_id, {})
        return {task: str(state) for task, state in states.items() if state}

    def failed_values(self, ti: Any, run_id: str, *, mapped: str, source: str) -> list[Any]:
        """The values of the failed instances of `mapped`, which maps over what `source` returned.

        What was not mapped yet has one instance without a number, and while `source` runs again there
        are no values: neither is the failure of any.
        """
        prefix = f"{mapped}_"
        failed = sorted(
            int(task.removeprefix(prefix))
            for task, state in self.task_states(run_id, [mapped]).items()
            if state == "failed" and task.startswith(prefix)
        )
        if not failed:
            return []
        values = ti.xcom_pull(task_ids=source, dag_id=self.dag_id, run_id=run_id) or []
        return [values[index] for index in failed if index < len(values)]


def name_map_index(context: Any, name: str) -> None:
    """Show `name` instead of the number of a mapped task, from its start and not only at its end."""
    from airflow.sdk.execution_time.comms import SetRenderedMapIndex

    context["ti"].rendered_map_index = name
    _ask(SetRenderedMapIndex(rendered_map_index=name))


def _ask(message: Any) -> Any:
    # looked up at each call: Airflow sets it when the task starts
    from airflow.sdk.execution_time import task_runner

    return task_runner.SUPERVISOR_COMMS.send(message)
