"""A process that outlives the program that started it, found again by its pid and its birth.

A pid alone is not enough: after a crash or a reboot it may be anybody's. The birth (boot and clock
tick of the start) tells, whatever happened to the wall clock since.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

STOP_TIMEOUT_S = 30.0


@dataclass
class Component:
    """One process of the stack. `record` is its pid file, `log` takes its output."""

    name: str
    record: Path
    log: Path
    _child: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self, command: list[str], env: dict[str, str], folder: Path) -> None:
        """Start it as the leader of a session of its own: Ctrl-C in a terminal is not for it.

        Raises:
            TimeoutExpired: the one that was started before still runs.
        """
        if self._child is not None:
            # killed a moment ago: a zombie of ours, and not to be reaped before its last thread is gone
            self._child.wait(STOP_TIMEOUT_S)
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                command,
                env=env,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        pid = self._child.pid
        self.record.write_text(json.dumps({"pid": pid, "birth": birth(pid)}))

    @property
    def pid(self) -> int | None:
        """The pid of the process when it runs and is the one that was started."""
        if self._child is not None and self._child.poll() is not None:
            return None
        pid, born = self._read_record()
        return pid if pid is not None and birth(pid) == born else None

    def tail(self, lines: int = 15) -> str:
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _read_record(self) -> tuple[int | None, str | None]:
        try:
            record = json.loads(self.record.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None, None
        return int(record["pid"]), record["birth"]

    def _session(self) -> list[psutil.Process]:
        """Processes of its session: also those that a killed leader left behind."""
        pid, born = self._read_record()
        if pid is None or birth(pid) not in (born, None):  # None: the leader is dead
            return []
        return [process for process in psutil.process_iter() if _session_id(process) == pid]


def stop(components: Iterable[Component], timeout_s: float = STOP_TIMEOUT_S) -> list[str]:
    """Stop them all at once: SIGTERM to each leader, after `timeout_s` SIGKILL to what is left.

    Only the leaders get SIGTERM: an engine's own children must not, or what they were doing is lost
    before their parent can save it. Returns the names of those that had to be killed.
    """
    components = list(components)
    families = {component.name: _family(component) for component in components}
    for component in components:
        if component.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(component.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and any(c.pid is not None for c in components):
        time.sleep(0.1)
    killed = [component.name for component in components if component.pid is not None]
    for component in components:
        _kill({*families[component.name], *component._session()})
        if component._child is not None:
            component._child.wait()
        component.record.unlink(missing_ok=True)
    return killed


def birth(pid: int) -> str | None:
    """Say when a process was born in a way that no other process shares; None when there is none."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        if not psutil.LINUX:
            return str(process.create_time())
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        tick = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return None
    return f"{boot}:{tick}"


def _family(component: Component) -> list[psutil.Process]:
    """Its descendants, also those with a session of their own, while their parents still live."""
    family = component._session()
    for member in list(family):
        with contextlib.suppress(psutil.NoSuchProcess):
            family += member.children(recursive=True)
    return family


def _session_id(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except (ProcessLookupError, PermissionError):
        return None


def _kill(processes: Iterable[psutil.Process]) -> None:
    processes = [p for p in processes if p.is_running()]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=10)
