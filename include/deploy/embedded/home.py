"""The folder in which an embedded Airflow lives: where each file is, and what is kept over restarts.

Secrets are drawn once, at random, readable by the owner alone. One lock makes two concurrent `up`
into one `up` and one "already up".
"""

import base64
import fcntl
import json
import os
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from deploy.embedded.errors import StackError

DEFAULT_PORT = 8080
_FIRST_PORT, _PORTS = 20_000, 10_000  # Linux hands out 32768 and above, macOS 49152
OUTSIDE = "-folder"  # ends the names of files that say where a folder outside is
# sun_path holds 104 bytes on macOS and 108 on Linux, with the closing zero and the socket's name.
MAX_SOCKET_FOLDER_BYTES = 103 - len("/.s.PGSQL.5432")


@dataclass(frozen=True)
class Secrets:
    """What the four components must share; the password is the person's."""

    fernet_key: str
    jwt_secret: str
    api_secret_key: str
    admin_password: str


@dataclass(frozen=True)
class Home:
    folder: Path

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def pids(self) -> Path:
        return self.folder / "pids"

    @property
    def database(self) -> Path:
        """PostgreSQL's data: here, or outside where its user cannot get in here.

        As root PostgreSQL runs as another user. A private folder above is left private.
        """
        inside = self.folder / "postgres"
        if os.geteuid() != 0 or inside.exists() or _is_open_to_all(self.folder):
            return inside
        return self._outside("database") / "postgres"

    @property
    def passwords(self) -> Path:
        """The file in which Airflow's SimpleAuthManager looks passwords up."""
        return self.folder / "passwords.json"

    def make(self) -> None:
        for folder in (self.folder, self.logs, self.pids):
            folder.mkdir(parents=True, exist_ok=True)

    def secrets(self) -> Secrets:
        path = self.folder / "secrets.json"
        if not path.exists():
            _write_private(path, json.dumps(asdict(_draw_secrets())))
        drawn = Secrets(**json.loads(path.read_text()))
        _write_private(self.passwords, json.dumps({"admin": drawn.admin_password}))
        return drawn

    def port(self) -> int | None:
        """The port of the last start, so that a bookmark keeps working."""
        path = self.folder / "port"
        return int(path.read_text()) if path.exists() else None

    def choose_port(self, wanted: int | None) -> int:
        """Return the wanted port, else the last one, else 8080, else any that is free.

        Raises:
            StackError: the wanted port is taken.
        """
        if wanted is not None and not is_free(wanted):
            raise StackError(f"port {wanted} is taken: set SHARDLINE_PORT to another one")
        candidates = [wanted] if wanted is not None else [self.port(), DEFAULT_PORT]
        port = next((p for p in candidates if p is not None and is_free(p)), None) or free_port()
        (self.folder / "port").write_text(str(port))
        return port

    def socket_folder(self) -> Path:
        """Where PostgreSQL's socket goes: its data folder, or a short one when that path is too long."""
        if len(os.fsencode(self.database)) <= MAX_SOCKET_FOLDER_BYTES:
            return self.database
        return self._outside("socket")

    def remove_database(self) -> None:
        """Remove the database, and what else had to be put outside. Nothing of it may run."""
        shutil.rmtree(self.database, ignore_errors=True)
        for record in self.folder.glob(f"*{OUTSIDE}"):
            shutil.rmtree(record.read_text(), ignore_errors=True)
            record.unlink()

    def remove(self) -> None:
        self.remove_database()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _outside(self, name: str) -> Path:
        """A folder with a short path that everybody can reach, remembered here."""
        record = self.folder / f"{name}{OUTSIDE}"
        if not (record.exists() and Path(record.read_text()).is_dir()):
            record.write_text(tempfile.mkdtemp(prefix="shardline-"))
        return Path(record.read_text())

    @contextmanager
    def lock(self) -> Iterator[None]:
        self.make()
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def is_free(port: int) -> bool:
    """True when nothing listens on the port and it can be bound.

    Binding alone does not tell: macOS lets an address be bound beside a wildcard.
    """
    with socket.socket() as client:
        client.settimeout(1)
        if client.connect_ex(("127.0.0.1", port)) == 0:
            return False
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A free port below those that the system hands out by itself.

    One of these may be the near end of somebody's connection before the server listens that it is for.
    """
    while not is_free(port := _FIRST_PORT + secrets.randbelow(_PORTS)):
        pass
    return port


def _is_open_to_all(folder: Path) -> bool:
    return all(f.stat().st_mode & stat.S_IXOTH for f in (folder, *folder.parents))


def _draw_secrets() -> Secrets:
    return Secrets(
        fernet_key=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        jwt_secret=secrets.token_urlsafe(64),  # HS512 wants at least 64 bytes
        api_secret_key=secrets.token_urlsafe(32),
        admin_password=secrets.token_urlsafe(9),
    )


def _write_private(path: Path, content: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(content)
    unfinished.replace(path)
