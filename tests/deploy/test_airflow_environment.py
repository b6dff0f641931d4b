"""Airflow's image without an engine: what its lock installs plans jobs and parses the dags."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.embedded.environment import PROJECT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

LOCK = PROJECT / "include/requirements/airflow-lock-3.11.txt"
PROGRAM = """
import importlib.util
assert not [name for name in ("vllm", "torch") if importlib.util.find_spec(name)]
from airflow.dag_processing.dagbag import DagBag
bag = DagBag("dags")
assert bag.import_errors == {}, bag.import_errors
assert {"batch_inference", "infer_locally"} <= set(bag.dags)
import aiobotocore, huggingface_hub
import shardline.corpus.plan_job, shardline.report.report_job, shardline.results.publish
import shardline_airflow.arrivals, shardline_airflow.buckets
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    venv = tmp_path_factory.mktemp("airflow-only") / "venv"
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(venv)], check=True)
    install = [uv, "pip", "install", "-q", "-p", str(venv / "bin/python"), "--no-deps"]
    subprocess.run([*install, "-r", str(LOCK)], check=True)
    subprocess.run([uv, "pip", "check", "-q", "-p", str(venv / "bin/python")], check=True)
    return venv / "bin/python"


def test_it_parses_the_dags_and_has_no_engine(python: Path, tmp_path: Path) -> None:
    environment = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "120",  # as the stack has it: a busy machine
        "GX_ANALYTICS_ENABLED": "false",
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(PROJECT / "include"),
    }
    done = subprocess.run(
        [str(python), "-c", PROGRAM],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
