"""Run the files whose tests take longest first, so that processes that share the tests end together."""

from __future__ import annotations

from pathlib import Path

import pytest

# each takes three to six minutes, in one process
_LONGEST = (
    "benchmarks/test_faults.py",
    "dags/test_real_airflow.py",
    "worker/test_vllm.py",
    "e2e/test_demo.py",
    "runners/test_lost_nodes.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the others in their order."""
    here = Path(__file__).parent
    ranks = {here / name: rank for rank, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
