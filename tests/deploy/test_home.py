"""What an embedded Airflow keeps over restarts, and where it listens."""

import json
import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from deploy.embedded.errors import StackError
from deploy.embedded.home import MAX_SOCKET_FOLDER_BYTES, Home, free_port


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "airflow")
    home.make()
    return home


@pytest.fixture
def taken_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_secrets_are_random_private_and_kept(home, tmp_path):
    secrets = home.secrets()
    other = Home(tmp_path / "other")
    other.make()
    assert home.secrets() == secrets != other.secrets()
    assert json.loads(home.passwords.read_text()) == {"admin": secrets.admin_password}
    for path in (home.passwords, home.folder / "secrets.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_port_of_the_last_start_is_taken_again(home):
    port = free_port()
    assert home.choose_port(port) == port
    assert home.choose_port(None) == port


EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.skipif(not EPHEMERAL.exists(), reason="this system does not say which ports it gives")
def test_a_free_port_is_none_that_the_system_gives_to_connections():
    first = int(EPHEMERAL.read_text().split()[0])
    if first < 32_768:
        pytest.skip("this machine gives nearly all of its ports to connections")
    assert max(free_port() for _ in range(20)) < first


def test_a_port_that_is_taken_by_now_is_replaced(home, taken_port):
    (home.folder / "port").write_text(str(taken_port))
    assert home.choose_port(None) not in (taken_port, None)
    assert home.port() != taken_port


def test_a_wanted_port_that_is_taken_is_refused(home, taken_port):
    with pytest.raises(StackError, match="SHARDLINE_PORT"):
        home.choose_port(taken_port)


@pytest.fixture
def open_folder():
    """A folder that every user may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_deep_home_gets_a_short_socket_folder_and_keeps_it(open_folder):
    home = Home(open_folder / ("deep" * 20) / ("er" * 50))
    home.make()
    folder = home.socket_folder()
    assert len(str(folder)) <= MAX_SOCKET_FOLDER_BYTES < len(str(home.database))
    assert home.socket_folder() == folder
    folder.rmdir()  # as systems do that sweep their folder for temporary files
    assert home.socket_folder().is_dir()
    home.remove()
    assert not home.folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts PostgreSQL as another user")
def test_a_private_folder_stays_private_and_the_database_goes_outside(open_folder):
    private = open_folder / "private"
    private.mkdir(mode=0o700)
    home = Home(private / "airflow")
    home.make()
    database = home.database
    assert private not in database.parents
    assert home.database == database
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    home.remove()
    assert not database.parent.exists()
