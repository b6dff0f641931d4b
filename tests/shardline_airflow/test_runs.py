"""Dag runs as a task sees them: what Airflow answers, and what is made of it."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import GetTaskStates, TaskStatesResult

from shardline_airflow.runs import DagRuns

WAVE = "job-w0-g1"


class Supervisor:
    """Answers what the Execution API does for these states of a wave's tasks."""

    def __init__(self, states: dict[str, str]) -> None:
        self.states = states

    def send(self, msg: Any) -> Any:
        assert isinstance(msg, GetTaskStates)
        return TaskStatesResult(task_states={WAVE: self.states})


class Ti:
    """A task instance that can pull what `shard_numbers` returned."""

    def __init__(self, numbers: list[int] | None) -> None:
        self.numbers = numbers

    def xcom_pull(self, **_: Any) -> list[int] | None:
        return self.numbers


@pytest.mark.parametrize(
    ("states", "numbers", "failed"),
    [
        ({"infer_shard_0": "success", "infer_shard_2": "failed"}, [4, 5, 6], [6]),
        # marked as failed before it was mapped: Airflow calls it by the task's own name
        ({"infer_shard": "failed"}, [4, 5, 6], []),
        # `shard_numbers` was cleared alone: its value is gone until it has run again, and may be shorter
        ({"infer_shard_2": "failed"}, None, []),
        ({"infer_shard_0": "failed", "infer_shard_2": "failed"}, [5], [5]),
    ],
)
def test_the_shards_whose_tasks_failed_are_those_that_are_mapped(
    monkeypatch: pytest.MonkeyPatch,
    states: dict[str, str],
    numbers: list[int] | None,
    failed: list[int],
) -> None:
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(states), raising=False)
    runs = DagRuns("infer_on_gpu")
    found = runs.failed_values(Ti(numbers), WAVE, mapped="infer_shard", source="shard_numbers")
    assert found == failed
