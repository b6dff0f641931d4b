"""Two short campaigns, as `make faults` runs a long one."""

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
@pytest.mark.parametrize(("engine", "faults"), [("stub", 12), ("vllm", 5)])
def test_random_faults_lose_and_double_nothing(tmp_path: Path, engine: str, faults: int) -> None:
    command = [sys.executable, "-m", "benchmarks.faults", "--engine", engine]
    command += ["--faults", str(faults), "--seed", "6", "--rows", "60", "--no-calm"]
    command += ["--keep", str(tmp_path / "kept")]
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
    assert (found["faults"], found["lost"], found["doubled"]) == (faults, 0, 0)
    assert found["charged_with_progress"] == 0
    assert done.returncode == 0
