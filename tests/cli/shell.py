"""`shardline` as a user runs it: another process, with its exit code and streams."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Shell:
    """Runs commands beside a job file, with the root next to it."""

    folder: Path

    @property
    def job_file(self) -> str:
        return str(self.folder / "job.yaml")

    def __call__(self, *arguments: str, code: int = 0) -> str:
        done = self.run(*arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(Path(sys.executable).parent / "shardline"), *arguments],
            capture_output=True,
            text=True,
            env=os.environ | {"SHARDLINE_ROOT": str(self.folder / "root")},
            check=False,
        )
