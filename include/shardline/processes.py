"""Who ends with whom: the worker with its parent, engines with the worker (PROTOCOL 13).

A worker whose parent vanished drains: its rows are paid for. If it cannot, a thread ends it. Linux
tells a process when its parent dies; elsewhere a thread looks every second.

The processes of an engine ask Linux for SIGKILL when their maker ends, and for a process group of their own: a Ctrl-C in
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
import threading
import time

import psutil

_WORKER_PID = "SHARDLINE_WORKER_PID"  # set by a worker for the processes below it
_PARENT_PID = "SHARDLINE_PARENT_PID"  # set by a runner, which may be gone before we look
_POLL_S = 1.0
_PR_SET_PDEATHSIG = 1


def end_with_parent(drain_s: float) -> None:
    """Have SIGTERM sent to this worker when its parent ends, and SIGKILL when it stays."""
    parent = int(os.environ.pop(_PARENT_PID, os.getppid()))
    os.environ[_WORKER_PID] = str(os.getpid())
    if parent == 0:  # the first process of a container: there is nobody to outlive
        return
    _ask_for(signal.SIGTERM)
    threading.Thread(
        target=_watch, args=(parent, drain_s), name="parent-watch", daemon=True
    ).start()


def bind_engine_process() -> None:
    """vLLM calls this in each of its processes (entry point in pyproject.toml)."""
    maker = multiprocessing.parent_process()
    if _WORKER_PID not in os.environ or maker is None:
        return
    _ask_for(signal.SIGKILL)
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


def rss_mb() -> int:
    """Memory of this process and all below it, in MB."""
    me, total = psutil.Process(), 0
    for process in [me, *me.children(recursive=True)]:
        try:
            total += process.memory_info().rss
        except psutil.Error:  # it ended while we looked
            continue
    return total // 1_000_000


def _ask_for(number: signal.Signals) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _watch(parent: int, drain_s: float) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    if sys.platform != "linux":
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(drain_s + _POLL_S)
    kill_children()
    os.kill(os.getpid(), signal.SIGKILL)
