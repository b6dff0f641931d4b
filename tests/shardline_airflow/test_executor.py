"""The executor keeps a slot per workload, and drops the results that a deferral left behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from airflow.executors import local_executor
from airflow.utils.state import TaskInstanceState

from shardline_airflow.executor import TrackedLocalExecutor


@dataclass(frozen=True)
class Workload:
    """What the executor reads of a workload."""

    key: str


class NoWorkers(TrackedLocalExecutor):
    """Dispatches to queues that no process reads: results are put by the test."""

    def _spawn_workers_with_gc_freeze(self, spawn_number: int) -> None:
        pass

    def _spawn_worker(self) -> None:
        pass

    def dispatch(self, key: str) -> None:
        self.queued_tasks[key] = Workload(key)
        self._process_workloads([self.queued_tasks[key]])

    def answer(self, key: str, state: TaskInstanceState) -> None:
        self.change_state(key, state)


@pytest.fixture
def executor() -> Iterator[NoWorkers]:
    assert local_executor.LocalExecutor in TrackedLocalExecutor.__mro__
    made = NoWorkers(parallelism=2)
    made.start()
    yield made
    made.end()


def test_a_dispatched_workload_holds_a_slot_until_its_result(executor: NoWorkers) -> None:
    executor.dispatch("a")
    executor.dispatch("b")
    assert executor.slots_available == 0
    executor.answer("a", TaskInstanceState.SUCCESS)
    assert executor.slots_available == 1


def test_a_result_from_before_the_last_dispatch_is_dropped(executor: NoWorkers) -> None:
    executor.dispatch("a")
    executor.dispatch("a")  # the trigger was faster than the result of the deferral
    executor.answer("a", TaskInstanceState.SUCCESS)
    assert executor.event_buffer == {}
    assert executor.running == {"a"}
    executor.answer("a", TaskInstanceState.FAILED)
    assert executor.event_buffer == {"a": (TaskInstanceState.FAILED, None)}
    assert executor.running == set()


def test_a_running_report_keeps_the_slot(executor: NoWorkers) -> None:
    executor.dispatch("a")
    executor.answer("a", TaskInstanceState.RUNNING)
    assert executor.running == {"a"}
    executor.answer("a", TaskInstanceState.SUCCESS)
    assert executor.running == set()


def test_a_result_that_nobody_dispatched_here_is_passed_on(executor: NoWorkers) -> None:
    executor.answer("adopted", TaskInstanceState.FAILED)
    assert executor.event_buffer == {"adopted": (TaskInstanceState.FAILED, None)}
