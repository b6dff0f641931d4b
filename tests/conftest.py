"""For all tests: an example of hypothesis may take long, and the longest files come first."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# on machines of any speed
settings.register_profile(
    "any machine",
    parent=settings(),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")

# Each takes three to six minutes, in one process: processes that share the tests shall end together.
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
