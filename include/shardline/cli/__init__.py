"""The `shardline` command: the same stages as the dags call, in one process and without Airflow."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Entry point of the `shardline` command."""
    from shardline.cli.boundary import run_command

    code = run_command()
    sys.stdout.flush()
    sys.stderr.flush()
    # the exit code is the truth about the job: no library's thread may change it on its way out
    os._exit(code)
