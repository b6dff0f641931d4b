"""The `shardline` command: the same stages as the dags call, in one process and without Airflow."""

from __future__ import annotations


def main() -> None:
    """Entry point of the `shardline` command."""
    from shardline.cli.boundary import run_command

    raise SystemExit(run_command())
