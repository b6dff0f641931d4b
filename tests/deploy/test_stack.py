"""A real Airflow comes up, runs tasks, says what failed, and survives the death of a component."""

import os
import signal
from collections.abc import Iterator

import pytest

from deploy.embedded.errors import ApiError, StackError
from deploy.embedded.stack import EmbeddedAirflow, embedded_airflow

DAGS = """
from datetime import timedelta

from airflow.providers.standard.sensors.time_delta import TimeDeltaSensor
from airflow.sdk import dag, task


@dag(schedule=None)
def deferred_then_mapped():
    @task(pool="local")
    def square(number):
        print("squaring", number)

    pause = TimeDeltaSensor(task_id="pause", delta=timedelta(seconds=1), deferrable=True)
    pause >> square.expand(number=[1, 2, 3])


@dag(schedule=None)
def failing():
    @task
    def fail():
        raise ValueError("the cause")

    fail()


deferred_then_mapped()
failing()
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedAirflow]:
    folder = tmp_path_factory.mktemp("embedded")
    (folder / "dags").mkdir()
    (folder / "dags" / "both.py").write_text(DAGS)
    with embedded_airflow(
        folder / "airflow",
        dags_folder=folder / "dags",
        plugins_folder=folder / "plugins",
        dags=["deferred_then_mapped", "failing"],
    ) as airflow:
        yield airflow


def test_deferred_and_mapped_tasks_run(airflow):
    run_id = airflow.trigger("deferred_then_mapped", run_id="one")
    assert airflow.wait("deferred_then_mapped", run_id, timeout_s=120) == "success"
    names = {"pause", "square[0]", "square[1]", "square[2]"}
    assert airflow.task_states("deferred_then_mapped", run_id) == dict.fromkeys(names, "success")
    assert "squaring 2" in airflow.logs("deferred_then_mapped", run_id, "square", 1)
    with pytest.raises(ApiError) as refused:
        airflow.trigger("deferred_then_mapped", run_id="one")
    assert refused.value.status == 409


def test_the_log_of_a_failed_task_has_the_cause(airflow):
    run_id = airflow.trigger("failing")
    assert airflow.wait("failing", run_id, timeout_s=120) == "failed"
    assert "ValueError: the cause" in airflow.logs("failing", run_id, "fail")


def test_a_dag_that_does_not_appear_is_reported_with_a_place_to_look(airflow):
    with pytest.raises(StackError, match="the dag missing was not ready"):
        airflow.stack.wait_for_dags(["missing"], timeout_s=1)


def test_a_running_stack_is_left_alone_and_a_dead_component_is_named_and_brought_back(airflow):
    stack = airflow.stack
    assert not stack.up()
    os.kill(stack.pids()["scheduler"], signal.SIGKILL)
    with pytest.raises(StackError, match="scheduler has died"):
        airflow.wait("failing", airflow.trigger("failing"), timeout_s=60)
    assert stack.up()
    assert airflow.wait("failing", airflow.trigger("failing"), timeout_s=120) == "failed"
