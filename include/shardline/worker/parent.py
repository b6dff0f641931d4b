"""The worker ends when its parent does (PROTOCOL 13).

A worker whose parent vanished drains: its rows are paid for. If it cannot, a thread ends it. Linux
tells a process when its parent dies; elsewhere a thread looks every second.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from shardline.engines.processes import WORKER_PID, ask_for_signal, kill_children

_POLL_S = 1.0
_PARENT_PID = "SHARDLINE_PARENT_PID"  # set by a runner, which may be gone before we look


def end_with_parent(drain_s: float) -> None:
    """Have SIGTERM sent to this worker when its parent ends, and SIGKILL when it stays."""
    parent = int(os.environ.pop(_PARENT_PID, os.getppid()))
    os.environ[WORKER_PID] = str(os.getpid())
    if parent == 0:  # the first process of a container: there is nobody to outlive
        return
    ask_for_signal(signal.SIGTERM)
    threading.Thread(
        target=_watch, args=(parent, drain_s), name="parent-watch", daemon=True
    ).start()


def _watch(parent: int, drain_s: float) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    if sys.platform != "linux":
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(drain_s + _POLL_S)
    kill_children()
    os.kill(os.getpid(), signal.SIGKILL)
