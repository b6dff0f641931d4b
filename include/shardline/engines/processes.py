"""The processes that engines make: they end with the worker, and no signal reaches them before.

They ask Linux for SIGKILL when their maker ends, and for a process group of their own: a Ctrl-C in
a terminal, or a kill of the worker's group, must not reach an engine that the worker is draining.
Linux sends that signal when the *thread* that made the process ends, so engines are started from a
thread that lives as long as the worker.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

import psutil

WORKER_PID = "SHARDLINE_WORKER_PID"
"""Set by a worker for the processes below it."""
_PR_SET_PDEATHSIG = 1


def bind_engine_process() -> None:
    """vLLM calls this in each of its processes (entry point in pyproject.toml)."""
    maker = multiprocessing.parent_process()
    if WORKER_PID not in os.environ or maker is None:
        return
    ask_for_signal(signal.SIGKILL)
    if os.getppid() != maker.pid:  # it ended before we asked
        os._exit(1)
    os.setpgid(0, 0)


def kill_children() -> None:
    """End whatever this process has started, at once; an engine that is half up too."""
    for child in psutil.Process().children(recursive=True):
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue


def ask_for_signal(number: signal.Signals) -> None:
    """Have the kernel send us this signal when our parent ends (PR_SET_PDEATHSIG, Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
