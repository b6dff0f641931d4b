import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from shardline.runners.local import LocalWorker, run_worker, worker_environment
from tests.worker.prepared import QUICK, SHARD, Prepared, prepare

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ENGINE = {
    "model": "stub",
    "engine": "stub",
    "engine_args": {"max_num_seqs": 2, "latency_s": 0.02},
}
ROWS = [f"document number {n}" for n in range(1_500)]  # 15 s: no signal comes after the end


def start(prepared: Prepared) -> LocalWorker:
    return LocalWorker(prepared.store.uri, prepared.plan.job_id, SHARD, env=QUICK)


def test_lines_are_passed_on_and_the_exit_code_comes_back(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS[:5])
    lines: list[str] = []
    code = run_worker(
        prepared.store.uri, prepared.plan.job_id, SHARD, on_line=lines.append, env=QUICK
    )
    assert code == 0
    assert any("5 results committed" in line for line in lines)


@pytest.mark.protocol(12)
def test_drain_asks_the_worker_to_stop_and_waits_for_its_commit(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS, local=ENGINE)
    worker = start(prepared)

    def drain(line: str) -> None:
        if "segment 0 committed" in line:
            worker.drain()

    assert worker.wait(drain) == 75
    assert prepared.committed()


def test_an_exception_in_the_waiting_task_drains_the_worker_first(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS, local=ENGINE)
    script = tmp_path / "task.py"
    script.write_text(
        "import signal\n"
        "from shardline.runners.local import run_worker\n"
        # whoever runs the tests in the background has it ignored, by us and our children
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"run_worker({prepared.store.uri!r}, {prepared.plan.job_id!r}, {SHARD!r}, on_line=lambda l: print(l, flush=True), env={QUICK!r})\n"
    )
    task = subprocess.Popen(
        [sys.executable, str(script)], stdout=-1, stderr=-1, text=True, start_new_session=True
    )
    assert task.stdout
    for line in task.stdout:
        if "segment 0 committed" in line:
            os.killpg(task.pid, signal.SIGINT)  # Ctrl-C: the worker is in a group of its own
    _, errors = task.communicate()
    assert "KeyboardInterrupt" in errors
    assert [a.exit_code for a in prepared.attempts()] == [75]


def test_a_killed_worker_is_a_negative_exit_code_and_leaves_nothing_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(tmp_path, ROWS, local=ENGINE)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.setenv("TMPDIR", str(scratch))
    worker = start(prepared)
    seen: list[Path] = []

    def kill(line: str) -> None:
        if "segment 0 committed" in line:
            seen.extend(scratch.iterdir())
            psutil.Process(worker.pid).kill()

    assert worker.wait(kill) == -signal.SIGKILL
    assert seen
    assert not list(scratch.iterdir())


@pytest.mark.protocol(13)
def test_what_a_killed_worker_leaves_in_its_session_ends_with_it(tmp_path: Path) -> None:
    """As an engine does that is still starting: it holds the worker's output and listens to nobody."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, subprocess\n"
        "child = subprocess.Popen(['sleep', '600'], process_group=0)\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
    )
    prepared = prepare(tmp_path, ROWS, local=ENGINE)
    env = {**QUICK, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    worker = LocalWorker(prepared.store.uri, prepared.plan.job_id, SHARD, env=env)

    def kill(line: str) -> None:
        if "segment 0 committed" in line:
            psutil.Process(worker.pid).kill()

    assert worker.wait(kill) == -signal.SIGKILL
    left = int((tmp_path / "child").read_text())
    with suppress(psutil.NoSuchProcess):
        assert psutil.Process(left).status() == psutil.STATUS_ZOMBIE


@pytest.mark.protocol(13)
def test_the_worker_is_in_a_session_of_its_own(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS[:1], local=ENGINE)
    worker = start(prepared)
    assert os.getsid(worker.pid) == worker.pid
    assert worker.wait() == 0


def test_byte_code_is_kept_and_our_programs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    env = worker_environment({"X": "1"})
    assert "PYTHONDONTWRITEBYTECODE" not in env
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert env["X"] == "1"
