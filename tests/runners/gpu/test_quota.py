"""A used-up quota is told from what else answers 403, by what the quota has left."""

from __future__ import annotations

from typing import Any

import pytest

from shardline.runners.gpu.quantity import parse_quantity
from shardline.runners.gpu.quota import is_used_up

BOTH = {"memory": "32Gi", "ephemeral-storage": "50Gi", "nvidia.com/gpu": "2"}
POD = {"spec": {"containers": [{"resources": {"requests": {"cpu": "4", **BOTH}, "limits": BOTH}}]}}


def quota(name: str, hard: str, used: str) -> dict[str, Any]:
    return {"status": {"hard": {name: hard}, "used": {name: used}}}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (quota("pods", "10", "10"), True),
        (quota("pods", "10", "9"), False),
        (quota("count/pods", "10", "10"), True),
        (quota("requests.nvidia.com/gpu", "8", "7"), True),
        (quota("requests.nvidia.com/gpu", "8", "6"), False),
        (quota("cpu", "8", "4500m"), True),
        (quota("requests.cpu", "8", "4"), False),
        (quota("limits.memory", "64Gi", "33Gi"), True),
        (quota("requests.ephemeral-storage", "1Ti", "1000Gi"), True),
        (quota("services", "1", "1"), False),
        # larger than the whole quota: no waiting helps
        (quota("requests.nvidia.com/gpu", "1", "0"), False),
        # closed for a while
        (quota("count/pods", "0", "0"), True),
        (quota("requests.nvidia.com/gpu", "0", "0"), True),
        ({"status": {"hard": {"pods": "10"}}}, True),
        ({}, True),
    ],
)
def test_a_quota_is_used_up_when_the_pod_must_wait_for_others(
    found: dict[str, Any], expected: bool
) -> None:
    assert is_used_up([quota("pods", "10", "0"), found], POD) is expected


@pytest.mark.parametrize("text", ["", "32GB", "-1", "4 cores", "1.2.3", "Gi", "32gi"])
def test_what_is_no_quantity_is_said_so(text: str) -> None:
    with pytest.raises(ValueError, match="expected a quantity"):
        parse_quantity(text)


def test_quantities_mean_what_kubernetes_means_by_them() -> None:
    assert parse_quantity("32Gi") == 32 * 1024**3
    assert parse_quantity("1.5G") == 1_500_000_000
    assert parse_quantity("500m") * 2 == parse_quantity("1") == parse_quantity("1e0")
