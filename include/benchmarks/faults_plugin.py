"""A plug-in of vLLM for campaigns only: SIGUSR1 makes an engine's process call os._exit.

From outside one can kill a process, but not make it end by itself, as a failed assertion in a
library does.
"""

import os
import signal
import threading

_EXIT_CODE = 99


def register() -> None:
    """vLLM calls this in each of its processes; only the engine's own gets the handler."""
    is_child = os.environ.get("SHARDLINE_WORKER_PID") not in (None, str(os.getpid()))
    if is_child and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, lambda number, frame: os._exit(_EXIT_CODE))
