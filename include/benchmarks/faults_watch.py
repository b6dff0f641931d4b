"""One attempt as a campaign sees it from outside: its process, and its latest word in the store."""

from __future__ import annotations

import json
import signal
import threading
import time
from contextlib import suppress

import psutil

from benchmarks.faults_job import Job
from shardline.layout import JobLayout
from shardline.runners.local import LocalWorker

_LOOK_S = 0.2


class Watched:
    """An attempt that runs, or has run. Moments are monotonic seconds."""

    def __init__(self, job: Job, shard: str, number: int, worker: LocalWorker) -> None:
        self.shard, self.number, self.worker = shard, number, worker
        self.began = time.monotonic()
        self.over = threading.Event()
        self.up = threading.Event()
        """Set when the engine is up, and when the attempt is over."""
        self.up_after_s: float | None = None
        self.rows_done = self.rows_total = 0
        self.attempt = _attempt_of(worker.pid)
        self.killed_at: float | None = None
        self.children: set[psutil.Process] = set()
        self._near, self._layout = job.near, JobLayout(job.plan.job_id)
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.began

    def end(self) -> None:
        """Its process is gone."""
        self.over.set()
        self.up.set()

    def _watch(self) -> None:
        while not self.over.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Read its progress, and see which processes it has."""
        with suppress(psutil.Error):
            self.children.update(psutil.Process(self.worker.pid).children(recursive=True))
        found = self._near.read_or_none(self._layout.progress(self.shard, self.attempt))
        if found is None:
            return
        word = json.loads(found)
        self.rows_done, self.rows_total = word["rows_done"], word["rows_total"]
        if word["state"] != "starting" and not self.up.is_set():
            self.up_after_s = self.age_s
            self.up.set()

    def engine(self) -> psutil.Process | None:
        """The engine's own process; half up it has no name yet."""
        spawned = None
        with suppress(psutil.Error):
            for child in psutil.Process(self.worker.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if "EngineCore" in child.name():
                        return child
                    if any("spawn_main" in part for part in child.cmdline()):
                        spawned = spawned or child
        return spawned

    def signal(self, number: int) -> bool:
        """Send it a signal; False when it is gone."""
        if self.over.is_set():
            return False
        try:
            psutil.Process(self.worker.pid).send_signal(number)
        except psutil.Error:
            return False
        if number == signal.SIGKILL:
            self.killed_at = time.monotonic()
        return True

    def orphans(self, within_s: float = 60.0) -> list[str]:
        """Processes that outlive their worker; they are ended then."""
        deadline = time.monotonic() + within_s
        while left := [child for child in self.children if _lives(child)]:
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_S)
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        return [f"{process.pid}" for process in left]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _attempt_of(pid: int) -> str:
    """The id that its runner gave the attempt, from its command line.

    Raises:
        RuntimeError: the process has no such line; it may have none for a moment after its start.
    """
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(psutil.Error, ValueError, IndexError):
            command = psutil.Process(pid).cmdline()
            return command[command.index("--attempt") + 1]
        time.sleep(0.01)
    raise RuntimeError(f"process {pid}: no --attempt in its command line")
