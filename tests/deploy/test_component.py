"""A component is found again by pid and birth, and nothing of it outlives a stop."""

import json
import os
import sys
from pathlib import Path

import psutil
import pytest

from deploy.embedded.component import Component, birth, stop
from tests.waits import until

SLEEP = "import time; print('started', flush=True); time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); {SLEEP}"
OWN_SESSION = PARENT.replace("])", "], start_new_session=True)")


@pytest.fixture
def start(tmp_path: Path):
    components: list[Component] = []

    def start(code: str, starts: int = 1) -> Component:
        component = Component("sleeper", tmp_path / "pid.json", tmp_path / "log")
        components.append(component)
        component.start([sys.executable, "-c", code], dict(os.environ), tmp_path)
        until("start", lambda: component.tail().count("started") == starts)
        return component

    yield start
    stop(components, timeout_s=0)


def seen_from_elsewhere(component: Component) -> Component:
    return Component(component.name, component.record, component.log)


def test_another_program_finds_and_stops_it(start):
    component = start(SLEEP)
    other = seen_from_elsewhere(component)
    assert other.pid == component.pid is not None
    assert stop([other]) == []
    assert component.pid is None


def test_a_pid_that_is_another_process_by_now_is_neither_taken_for_it_nor_killed(start, tmp_path):
    bystander = start(SLEEP)
    record = tmp_path / "stale.json"
    record.write_text(json.dumps({"pid": bystander.pid, "birth": "before the reboot:1"}))
    stale = Component("stale", record, tmp_path / "log")
    assert stale.pid is None
    stop([stale])
    assert bystander.pid is not None


def test_one_that_ignores_sigterm_is_killed_and_named(start):
    component = start(DEAF)
    assert stop([component], timeout_s=0.2) == ["sleeper"]
    assert component.pid is None


@pytest.mark.parametrize("code", [PARENT, OWN_SESSION])
def test_its_children_end_with_it(start, code):
    component = start(code, starts=2)
    child = psutil.Process(component.pid).children()[0].pid
    stop([component])
    until("end of its child", lambda: birth(child) is None)


def test_what_a_killed_leader_left_behind_ends_too(start):
    component = start(PARENT, starts=2)
    leader = psutil.Process(component.pid)
    child = leader.children()[0].pid
    leader.kill()
    until("end of its leader", lambda: component.pid is None)
    stop([seen_from_elsewhere(component)])
    until("end of its child", lambda: birth(child) is None)


def test_one_that_was_killed_and_not_yet_reaped_starts_again(start, tmp_path):
    component = start(SLEEP)
    killed = psutil.Process(component.pid)
    killed.kill()
    until("zombie", lambda: killed.status() == psutil.STATUS_ZOMBIE)
    component.start([sys.executable, "-c", SLEEP], dict(os.environ), tmp_path)
    assert not killed.is_running()
    assert component.pid not in (None, killed.pid)


def test_a_torn_pid_file_means_not_running(tmp_path: Path):
    record = tmp_path / "pid.json"
    record.write_text('{"pid": 1')
    assert Component("torn", record, tmp_path / "log").pid is None
