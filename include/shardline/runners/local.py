"""Run a worker as a subprocess of this one: the runner that needs nothing but this machine.

How it works: the worker gets a session of its own, so that a signal to our process group or a
Ctrl-C reaches it once, from us, and never its engine. Its lines are passed on as they come. When we
are told to stop, it is asked to drain and waited for. What is left of its session then is ended.

What it does not do: retry (see `retry`), or kill a worker. One that does not end on its own by its
drain budget is a bug there.

Known limitation: when we are killed with SIGKILL, the kernel tells the worker and it drains; nobody
is left to see its exit code, but its attempt's record holds how it ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
from uuid6 import uuid7

from shardline.disk import remove_scratch

OnLine = Callable[[str], None]

_GONE_S = 10.0  # the kernel takes a moment to end what is killed


class LocalWorker:
    """One worker process. `drain` may be called from a signal handler or another thread."""

    def __init__(
        self,
        root_uri: str,
        job_id: str,
        shard: str,
        *,
        generation: int = 1,
        attempt: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        command = [sys.executable, "-m", "shardline.worker"]
        command += ["--job", f"{root_uri.rstrip('/')}/jobs/{job_id}", "--shard", shard]
        command += ["--generation", str(generation)]
        self._attempt = attempt or str(uuid7())
        command += ["--attempt", self._attempt]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=worker_environment(env or {}),
            start_new_session=True,
            text=True,
            encoding="utf-8",
            errors="replace",
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def drain(self) -> None:
        """Ask it to stop: the first time it finishes what is running, then it commits at once."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, on_line: OnLine = lambda _: None) -> int:
        """Pass its lines on until it ends; its exit code, negative for the signal that killed it.

        Whatever interrupts us (a KeyboardInterrupt, a task's timeout) drains it first.
        """
        reading = threading.Thread(target=self._read, args=(on_line,), name="worker-log")
        reading.start()
        try:
            return self._process.wait()
        except BaseException:
            self.drain()
            self._process.wait()
            raise
        finally:
            self._end_session()
            remove_scratch(self._attempt)
            reading.join()

    def _end_session(self) -> None:
        """End what a killed worker left behind.

        An engine that was starting asks nobody yet whether its maker lives: it would wait minutes
        for a word from it, keep its memory, and hold the pipe that is read here.
        """
        left = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.pid:
                    process.kill()
                    left.append(process)
            except (psutil.Error, OSError):  # it ended while we looked
                continue
        psutil.wait_procs(left, timeout=_GONE_S)

    def _read(self, on_line: OnLine) -> None:
        assert self._process.stdout
        with self._process.stdout as lines:
            for line in lines:
                on_line(line.rstrip("\n"))


def run_worker(
    root_uri: str,
    job_id: str,
    shard: str,
    generation: int = 1,
    *,
    attempt: str | None = None,
    on_line: OnLine = lambda _: None,
    on_start: Callable[[LocalWorker], None] = lambda _: None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run one attempt on a shard to its end; its exit code, negative for a signal.

    `on_start` gets the worker, for a caller that must be able to drain it (Airflow's on_kill).
    """
    worker = LocalWorker(root_uri, job_id, shard, generation=generation, attempt=attempt, env=env)
    on_start(worker)
    return worker.wait(on_line)


def worker_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Our environment, with this Python's programs found first and byte code kept.

    Without byte code each process of an engine compiles its libraries again: 20 CPU seconds each.
    """
    env = {**os.environ, **extra}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    env["PYTHONUNBUFFERED"] = "1"
    env["SHARDLINE_PARENT_PID"] = str(os.getpid())
    return env
