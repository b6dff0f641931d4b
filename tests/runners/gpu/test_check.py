"""What would refuse every pod, or end every worker, is found in the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardline.errors import NotAllowed, WrongInput
from shardline.job import JobFile
from shardline.runners.gpu.check import check_gpu_job
from shardline.runners.gpu.settings import GpuSettings
from tests.factories import make_job

ROOT = "s3://lake/shardline"


def gpu_job(folder: Path, **fields: Any) -> JobFile:
    block = {"model": "org/model", **fields}
    return make_job(folder, run_on="gpu", gpu=block)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("MEMORY", "32GB", "SHARDLINE_GPU_MEMORY: .*quantity"),
        ("CPU", "four", "SHARDLINE_GPU_CPU: .*quantity"),
        ("SHM", "64Gi", "shm .*counts as memory"),
        ("EPHEMERAL_STORAGE", "0", "SHARDLINE_GPU_EPHEMERAL_STORAGE: .*more than 0"),
        ("NAMESPACE", "Shard_Line", "SHARDLINE_GPU_NAMESPACE: .*name of Kubernetes"),
        ("NAMESPACE", "", "SHARDLINE_GPU_NAMESPACE"),
        ("NAMESPACE", "shard.line", "SHARDLINE_GPU_NAMESPACE: .*no dot"),
        ("SERVICE_ACCOUNT", "my account", "SHARDLINE_GPU_SERVICE_ACCOUNT"),
        ("STORE_SECRET", "AWS=x", "SHARDLINE_GPU_STORE_SECRET"),
        ("RESOURCE", "gpu", "SHARDLINE_GPU_RESOURCE: .*nvidia.com/gpu"),
        ("CACHE", "var/cache", "SHARDLINE_GPU_CACHE: .*claim:NAME"),
        ("CACHE", "claim:", "SHARDLINE_GPU_CACHE"),
        ("CACHE", "/var/../etc", "SHARDLINE_GPU_CACHE"),
        ("PODS", "many", "SHARDLINE_GPU_PODS"),
        ("USER", "0", "SHARDLINE_GPU_USER"),
        ("WORKER_ENV", "AWS_REGION,AWS_SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY is a secret"),
        ("CLOUD", "nowhere", "no block nowhere"),
        ("STALE_S", "600", "SHARDLINE_GPU_STALE_S: .*1800 s"),
    ],
)
def test_a_wrong_setting_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(f"SHARDLINE_GPU_{name}", value)
    with pytest.raises(WrongInput, match=said):
        check_gpu_job(gpu_job(tmp_path), ROOT, {})


def test_the_defaults_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_gpu_job(gpu_job(tmp_path), ROOT, {})
    monkeypatch.setenv("SHARDLINE_GPU_CLOUD", "gke")
    check_gpu_job(gpu_job(tmp_path, accelerator="l4"), ROOT, {"SHARDLINE_SEGMENT_S": "30"})


def test_a_wrong_job_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDLINE_GPU_CLOUD", "gke")
    with pytest.raises(NotAllowed, match=r"gpu\.accelerator"):
        check_gpu_job(gpu_job(tmp_path, accelerator="b200"), ROOT, {})
    with pytest.raises(WrongInput, match="tensor_parallel_size"):
        check_gpu_job(gpu_job(tmp_path, engine_args={"tensor_parallel_size": 0}), ROOT, {})


def test_what_workers_would_refuse_at_their_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match="SHARDLINE_SEGMENT_S"):
        check_gpu_job(gpu_job(tmp_path), ROOT, {"SHARDLINE_SEGMENT_S": "1m"})
    check_gpu_job(gpu_job(tmp_path), ROOT, {"SHARDLINE_SEGMENT_S": "", "SHARDLINE_DRAIN_S": "x"})


def test_what_a_deployment_sets_for_its_workers_reaches_those_in_pods(tmp_path: Path) -> None:
    """A plan made through a mirror of the hub, or for an engine that starts for long, holds there."""
    with pytest.raises(WrongInput, match=r"SHARDLINE_GPU_STALE_S: .*7200 s"):
        check_gpu_job(gpu_job(tmp_path), ROOT, {"SHARDLINE_ENGINE_START_S": "7200"})
    # a region has two names, and the store's library reads both
    assert {"HF_ENDPOINT", "AWS_REGION", "AWS_DEFAULT_REGION"} <= set(GpuSettings().worker_env)


def test_a_folder_that_pods_do_not_see_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = gpu_job(tmp_path, model="/models/m")
    with pytest.raises(WrongInput, match="SHARDLINE_ROOT: pods do not see the folder /data"):
        check_gpu_job(gpu_job(tmp_path), "/data", {})
    with pytest.raises(WrongInput, match=r"gpu\.model: pods do not see the folder /models/m"):
        check_gpu_job(local, ROOT, {})
    clouds = tmp_path / "clouds.yaml"
    clouds.write_text(
        "plain: {volumes: [{name: m, hostPath: {path: /models}}],"
        " mounts: [{name: m, mountPath: /models}]}"
    )
    monkeypatch.setenv("SHARDLINE_GPU_CLOUDS_FILE", str(clouds))
    check_gpu_job(local, ROOT, {})


def test_a_job_that_runs_in_no_pod_needs_no_settings_of_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDLINE_GPU_MEMORY", "much")
    check_gpu_job(make_job(tmp_path), "/data", {})
