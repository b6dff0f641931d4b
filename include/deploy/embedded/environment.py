"""The environment of the four components: what Airflow is told, and why it differs from its defaults.

A function of values. What the caller exports is handed on (SHARDLINE_*, connections, AWS_*), except
other settings of Airflow: an AIRFLOW__DATABASE__SQL_ALCHEMY_CONN of another project must not become
the database that this stack migrates.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.embedded.home import Home, Secrets

PROJECT = Path(__file__).resolve().parents[3]
EXECUTOR = "shardline_airflow.executor.TrackedLocalExecutor"
KEPT = ("AIRFLOW_CONN_", "AIRFLOW_VAR_")
# With it, each process that imports vLLM compiles it anew: 20 CPU seconds instead of 8.
DROPPED = ("PYTHONDONTWRITEBYTECODE",)


@dataclass(frozen=True)
class Folders:
    """Where Airflow finds dags and plugins."""

    dags: Path = PROJECT / "dags"
    plugins: Path = PROJECT / "plugins"


def environment(
    home: Home,
    secrets: Secrets,
    folders: Folders,
    database_uri: str,
    port: int,
    inherited: Mapping[str, str],
    changes: Mapping[str, str],
) -> dict[str, str]:
    """Return the whole environment. `changes` win over everything."""
    kept = {name: value for name, value in inherited.items() if _is_kept(name)}
    own = _settings(folders, port) | _places(home, secrets, database_uri)
    return kept | _process(inherited) | own | dict(changes)


def _is_kept(name: str) -> bool:
    is_airflows = name.startswith("AIRFLOW_") and not name.startswith(KEPT)
    return not is_airflows and name not in DROPPED


def _process(inherited: Mapping[str, str]) -> dict[str, str]:
    """Let the components find the venv's programs, our packages, and each other without a proxy."""
    programs = str(Path(sys.executable).parent)
    local = "127.0.0.1,localhost"
    found = {
        "PATH": [programs, inherited.get("PATH", os.defpath)],
        "PYTHONPATH": [str(PROJECT / "include"), inherited.get("PYTHONPATH", "")],
    }
    paths = {name: os.pathsep.join(filter(None, parts)) for name, parts in found.items()}
    exempt = {n: f"{inherited[n]},{local}" if inherited.get(n) else local for n in _NO_PROXY}
    return paths | exempt


_NO_PROXY = ("NO_PROXY", "no_proxy")


def _places(home: Home, secrets: Secrets, database_uri: str) -> dict[str, str]:
    return {
        "AIRFLOW_HOME": str(home.folder),
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home.logs / "tasks"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database_uri,
        "AIRFLOW__CORE__FERNET_KEY": secrets.fernet_key,
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.jwt_secret,
        "AIRFLOW__API__SECRET_KEY": secrets.api_secret_key,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home.passwords),
    }


def _settings(folders: Folders, port: int) -> dict[str, str]:
    return {
        "AIRFLOW__CORE__DAGS_FOLDER": str(folders.dags),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(folders.plugins),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__EXECUTOR": EXECUTOR,
        # Counts only with our executor. About 160 MB a worker process.
        "AIRFLOW__CORE__PARALLELISM": "8",
        # A wave is 1,000 mapped tasks; pools bound what really runs.
        "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "1000",
        # A slow import in a worker looks like a missing dag, and runs the task from its start.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "120",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "30",  # a new dag file is seen in half a minute
        # Each parse of a file imports what its tasks do, a CPU second. One that was changed does not wait
        # for this; a job file that was does.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        # The api-server's first answer costs four CPU seconds; five are too few on a busy machine.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "30",
        # It is also how long a queued task's token lives.
        "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "3600",
        "AIRFLOW__SCHEDULER__MAX_TIS_PER_QUERY": "256",
        # What a killed scheduler left running is taken up again in half a minute, not in five.
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
        # Expanding a wave stalls the scheduler for seconds; stalled is not dead.
        "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "120",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "120",
        "AIRFLOW__TRIGGERER__ON_KILL_TIMEOUT": "120",
    }
