"""Follows one dag run of a job and prints what is new; says which tasks failed, and why."""

from __future__ import annotations

import time
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from deploy.embedded.api import Json, task_name
from deploy.embedded.outcome import open_job
from deploy.embedded.stack import ENDED, EmbeddedAirflow

if TYPE_CHECKING:
    from shardline.status.read import StatusReader

DAG = "batch_inference"
POLL_S = 2.0
STATUS_EVERY_S = 10.0
SAME_STATUS_EVERY_S = 60.0  # nothing new: a sign of life
LOG_LINES = 15


class Follower:
    """Watches one dag run and prints what is new: a task that ended, or how far the rows are.

    `waves` is the dag of the job's waves.
    """

    def __init__(self, airflow: EmbeddedAirflow, run_id: str, waves: str) -> None:
        self.airflow, self.run_id, self.waves = airflow, run_id, waves
        self.job_id: str | None = None
        self._told: dict[str, str] = {}
        self._line = ""
        self._reader: StatusReader | None = None
        self._started = self._status_at = time.monotonic()

    def follow(self) -> str:
        """Return the run's state at its end."""
        while True:
            state = str(self.airflow.api.run(DAG, self.run_id)["state"])
            states = self.airflow.task_states(DAG, self.run_id)
            self._tell_tasks(states)
            if state in ENDED:
                return state
            self._tell_status(states)
            self.airflow.stack.check()
            time.sleep(POLL_S)

    def _tell_tasks(self, states: dict[str, str]) -> None:
        for task, state in settled(states).items():
            if self._told.get(task) != state:
                self._told[task] = state
                self._say(f"{task}: {state}")

    def _tell_status(self, states: dict[str, str]) -> None:
        now = time.monotonic()
        if states.get("run_waves") not in ("running", "deferred"):
            return
        if now - self._status_at < STATUS_EVERY_S or (reader := self._status_reader()) is None:
            return
        line = reader.read(datetime.now(UTC)).line()
        if line != self._line or now - self._status_at > SAME_STATUS_EVERY_S:
            self._line, self._status_at = line, now
            self._say(line)

    def _status_reader(self) -> StatusReader | None:
        if self._reader is None and self.find_job() is not None:
            from shardline.status.read import StatusReader

            self._reader = StatusReader(*open_job(str(self.job_id)))
        return self._reader

    def find_job(self) -> str | None:
        """The id of the job that the run works on, once it is planned."""
        if self.job_id is None:
            self.job_id = self.airflow.api.xcom(DAG, self.run_id, "plan_job", "job_id")
        return self.job_id

    def failures(self) -> list[str]:
        """The tasks that failed, each with the end of its log and where the rest is."""
        api, job_id = self.airflow.api, self.find_job()
        runs = [(DAG, self.run_id)]
        waves = [run for run in api.runs(self.waves) if _is_of(run, job_id)]
        runs += [(self.waves, run["dag_run_id"]) for run in waves]
        failed = [
            (dag_id, run_id, task)
            for dag_id, run_id in runs
            for task in api.task_instances(dag_id, run_id)
            if task["state"] == "failed"
        ]
        told = [_failed_task(self.airflow, *one) for one in failed[:3]]
        return [*told, f"and {len(failed) - 3} more failed tasks"] if len(failed) > 3 else told

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:7.0f} s  {text}", flush=True)


def settled(states: dict[str, str]) -> dict[str, str]:
    """Return task -> state, of the tasks all of whose mapped instances have ended or must wait."""
    instances = defaultdict(list)
    for name, state in states.items():
        instances[name.partition("[")[0]].append(state)
    loud = ("success", "failed", "up_for_retry", "upstream_failed", "skipped")
    return {
        task: _summary(found)
        for task, found in instances.items()
        if all(state in loud for state in found)
    }


def _summary(states: list[str]) -> str:
    counts = {state: states.count(state) for state in dict.fromkeys(states)}
    if len(states) == 1:
        return states[0]
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _is_of(run: Json, job_id: str | None) -> bool:
    return job_id is not None and (run["conf"] or {}).get("job_id") == job_id


def _failed_task(airflow: EmbeddedAirflow, dag_id: str, run_id: str, task: Json) -> str:
    place = (task["task_id"], task["map_index"])
    log = airflow.api.log(dag_id, run_id, *place, task["try_number"])
    folder = airflow.stack.home.logs / "tasks" / f"dag_id={dag_id}" / f"run_id={run_id}"
    said = [line for line in log.splitlines() if "::group::" not in line and "::end" not in line]
    lines = "\n".join(f"    {line}" for line in said[-LOG_LINES:])
    return f"{dag_id} {task_name(task)} failed; the end of its log (all in {folder}):\n{lines}"
