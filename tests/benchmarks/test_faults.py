"""A short campaign, as `make faults` runs a long one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

PROJECT = Path(__file__).parents[2]


@pytest.mark.protocol(7, 8, 9, 10, 11)
def test_random_faults_lose_and_double_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.faults", "--faults", "5", "--seed", "6"]
    command += ["--rows", "60", "--no-calm", "--keep", str(tmp_path / "kept")]
    done = subprocess.run(
        command,
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": "include"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(done.stdout)
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["faults"], found["lost"], found["doubled"]) == (5, 0, 0)
    assert found["charged_with_progress"] == 0
    assert done.returncode == 0
