"""The values file: what differs between clusters."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardline.errors import WrongInput
from shardline.runners.gpu.cloud import read_cloud
from shardline.runners.gpu.settings import GpuSettings


@pytest.mark.parametrize("name", ["plain", "gke", "eks", "aks"])
def test_the_file_of_the_project_is_right(name: str) -> None:
    assert read_cloud(GpuSettings().clouds_file, name).drain_s > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plain: {drain_s: soon}", r"clouds.yaml: plain\.drain_s: .*number"),
        ("plain: {drains: 1}", r"clouds.yaml: plain\.drains: "),
        ("other: {}", "no block plain; there are: other"),
        ("plain: {tolerations: [{effect: NoShedule}]}", r"plain\.tolerations\.0\.effect: "),
        ("plain: {tolerations: [{key: a, value: true}]}", r"plain\.tolerations\.0\.value: "),
        ("plain: {priority_classes: {Short: a}}", r"plain\.priority_classes\.Short"),
        ("plain: {env: {SHARDLINE_DRAIN_S: '60'}}", r"plain\.env: .*SHARDLINE_DRAIN_S is set"),
        ("plain: {mounts: [{name: a, mountPath: /a}]}", r"plain: .*expected the name of a volume"),
        ("plain: {tolerations: [{key: a, operator: Exists, value: b}]}", "Exists has no value"),
        ("plain: {tolerations: [{effect: NoSchedule}]}", "without a key, expected operator Exists"),
        (
            "plain: {tolerations: [{key: a, effect: NoSchedule, tolerationSeconds: 9}]}",
            "tolerationSeconds needs effect NoExecute",
        ),
        ("plain: {volumes: [{hostPath: {path: /a}}]}", "volumes: expected names of their own"),
        ("plain: {volumes: [{name: cache}]}", "volumes: expected names of their own"),
        ("plain: {volumes: [{name: a}, {name: a}]}", "volumes: expected names of their own"),
        (
            "plain: {volumes: [{name: a}], mounts: [{name: a, mountPath: /tmp}]}",
            "mounts: expected places of their own",
        ),
        ("plain: {node_selector: {spot: true}}", r"plain\.node_selector\.spot: "),
        ("- plain", "no block plain"),
        ("plain: {", "cannot be read"),
    ],
)
def test_a_wrong_file_is_named_with_its_field(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "clouds.yaml"
    file.write_text(text)
    with pytest.raises(WrongInput, match=said):
        read_cloud(file, "plain")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match=r"nowhere\.yaml: cannot be read"):
        read_cloud(tmp_path / "nowhere.yaml", "plain")


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDLINE_GPU_WORKER_ENV", "A, B,")
    monkeypatch.setenv("SHARDLINE_GPU_SILENT_S", "7")
    settings = GpuSettings()
    assert settings.worker_env == ("A", "B")
    assert settings.patience.silent_s == 7
