"""The embedded PostgreSQL starts again whatever ended it."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from deploy.embedded.home import Home
from deploy.embedded.postgres import Postgres


@pytest.fixture
def postgres(tmp_path: Path):
    home = Home(tmp_path.resolve() / "it's a folder")
    home.make()
    server = Postgres(home.database, home.socket_folder())
    yield server
    server.stop()
    home.remove()


@pytest.mark.slow
def test_it_starts_after_a_stop_a_kill_and_a_reused_pid(postgres):
    postgres.start()
    first = postgres.pid
    postgres.start()
    assert postgres.pid == first

    postgres.stop()
    assert postgres.pid is None
    postgres.start()

    children = psutil.Process(postgres.pid).children()
    os.kill(postgres.pid, signal.SIGKILL)
    psutil.wait_procs(children, timeout=30)
    lock = postgres.folder / "postmaster.pid"
    lock.write_text(lock.read_text().replace(lock.read_text().split("\n")[0], str(os.getpid()), 1))
    assert postgres.pid is None
    postgres.start()
    assert postgres.pid not in (None, os.getpid())
