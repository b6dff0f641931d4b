"""Give the tests an Airflow of their own: its settings are read once, when it is first imported."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def use_own_airflow_home() -> None:
    """Point Airflow at a new empty home with SQLite, once per process."""
    if "shardline-airflow-" in os.environ.get("AIRFLOW_HOME", ""):
        return
    home = tempfile.mkdtemp(prefix="shardline-airflow-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.environ["AIRFLOW_HOME"] = home
    os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(PROJECT / "dags")
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
