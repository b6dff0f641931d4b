"""The bench of pods: which slot stood idle how long, and whose CPU seconds they are."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from benchmarks.bench_airflow.both import figures_of
from benchmarks.bench_airflow.costs import Span, memory_mb, read
from benchmarks.bench_airflow.pod_lives import PodLife, turnarounds

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
BURN = "import time\nwhile time.process_time() < 0.5: pass\n"


def life(started_s: int | None, ended_s: int | None) -> PodLife:
    moments = [None if s is None else NOON + timedelta(seconds=s) for s in (started_s, ended_s)]
    return PodLife("pod", started_at=moments[0], ended_at=moments[1])


def test_the_pod_after_a_full_pool_takes_the_slot_that_was_left_first() -> None:
    lives = [life(0, 100), life(1, 60), life(70, 130), life(112, None), life(None, None)]
    idle = [turnaround.idle_s for turnaround in turnarounds(lives, slots=2)]
    assert idle == [70 - 60, 112 - 100]


def test_a_pool_that_never_was_full_has_no_turnaround() -> None:
    assert turnarounds([life(0, 10), life(5, 20)], slots=2) == []


def test_a_program_s_cpu_is_also_that_of_its_ended_and_its_living_children() -> None:
    then_live_on = "print('burnt', flush=True)\ntime.sleep(600)\n"
    script = (
        "import subprocess, sys\n"
        "sys.stdin.readline()\n"  # nothing is burnt before the first reading
        f"subprocess.run([sys.executable, '-c', {BURN!r}])\n"
        f"subprocess.run([sys.executable, '-c', {BURN + then_live_on!r}])\n"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert program.stdin
        assert program.stdout
        start = read({"it": program.pid})
        program.stdin.write(b"go\n")
        program.stdin.flush()
        assert program.stdout.readline() == b"burnt\n"
        span = Span(start, read({"it": program.pid}))
        # two burns of half a second, less what a clock of hundredths rounds off
        assert 0.9 < span.cpu_s("it") < 2.0
        assert memory_mb({"it": program.pid})["it"] > 5
    finally:
        for child in psutil.Process(program.pid).children():
            child.kill()
        program.communicate()


def test_a_program_that_has_ended_costs_nothing_more() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    pids = {"gone": gone.pid, "this": os.getpid()}
    assert Span(read(pids), read(pids)).cpu_s("gone") == 0


def test_the_figures_of_a_part_are_its_last_line(capfd: pytest.CaptureFixture[str]) -> None:
    said = 'print("for people"); print(\'{"waves_wall_s": 1.5}\')'
    assert figures_of([sys.executable, "-c", said]) == {"waves_wall_s": 1.5}
    assert "for people" in capfd.readouterr().out


def test_a_part_that_fails_fails_the_whole() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        figures_of([sys.executable, "-c", "print('{}'); raise SystemExit(1)"])
