"""What the manifests promise, read from the files; tests/cluster applies them to a real cluster."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from deploy.embedded.environment import PROJECT
from tests.deploy.settings_names import settings_names

FOLDER = PROJECT / "include/deploy/kubernetes"
NO_MANIFESTS = {"kustomization.yaml", "clouds.yaml"}


@pytest.fixture(scope="module")
def objects() -> dict[tuple[str, str], dict[str, Any]]:
    found = [
        each
        for file in FOLDER.glob("*.yaml")
        if file.name not in NO_MANIFESTS
        for each in yaml.safe_load_all(file.read_text())
    ]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def test_the_kustomization_names_every_file() -> None:
    named = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert set(named) == {file.name for file in FOLDER.glob("*.yaml")} - NO_MANIFESTS


def test_settings_in_manifests_are_named_as_programs_read_them() -> None:
    texts = "".join(file.read_text() for file in FOLDER.glob("*.yaml"))
    named = set(re.findall(r"SHARDLINE_[A-Z_]+", texts))
    assert "SHARDLINE_MODEL_CACHE" in named
    assert named <= set(settings_names())


def test_airflow_may_do_with_pods_what_the_operator_does_and_nothing_else(
    objects: dict[tuple[str, str], dict[str, Any]],
) -> None:
    rules = objects["Role", "shardline-pods"]["rules"]
    allowed = {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert allowed == {
        ("", "pods", "get"),
        ("", "pods", "list"),
        ("", "pods", "create"),
        ("", "pods", "patch"),
        ("", "pods", "delete"),
        ("", "pods/log", "get"),
        ("", "resourcequotas", "list"),
    }
    assert not [kind for kind, _ in objects if kind.startswith("Cluster")]


def test_nobody_gets_a_token_that_he_did_not_ask_for(
    objects: dict[tuple[str, str], dict[str, Any]],
) -> None:
    accounts = [each for (kind, _), each in objects.items() if kind == "ServiceAccount"]
    assert len(accounts) == 2
    assert all(account["automountServiceAccountToken"] is False for account in accounts)


def test_workers_take_no_place_from_others(
    objects: dict[tuple[str, str], dict[str, Any]],
) -> None:
    classes = {n: each for (kind, n), each in objects.items() if kind == "PriorityClass"}
    assert all(each["preemptionPolicy"] == "Never" for each in classes.values())
    assert classes["shardline-long"]["value"] < classes["shardline-short"]["value"] < 0
    assert not any(each.get("globalDefault") for each in classes.values())
    # the cluster autoscaler's default cutoff: for less it makes no node
    assert all(each["value"] >= -10 for each in classes.values())


def test_the_node_cache_is_made_for_nodes_that_come_and_go(
    objects: dict[tuple[str, str], dict[str, Any]],
) -> None:
    spec = objects["DaemonSet", "node-cache"]["spec"]["template"]["spec"]
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["automountServiceAccountToken"] is False
    containers = [*spec["initContainers"], *spec["containers"]]
    for container in containers:
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"]["drop"] == ["ALL"]
        assert container["resources"]["limits"]["memory"]
    roots = [c["name"] for c in containers if c["securityContext"].get("runAsUser") == 0]
    assert roots == ["make-folder"]


def test_the_node_cache_is_on_every_node_that_workers_are_sent_to(
    objects: dict[tuple[str, str], dict[str, Any]],
) -> None:
    """Where it is not, nobody gives the cache folder to the workers' user, and each of them ends."""
    spec = objects["DaemonSet", "node-cache"]["spec"]["template"]["spec"]
    assert "nodeSelector" not in spec
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    chosen = [tuple(e["key"] for e in t["matchExpressions"]) for t in required["nodeSelectorTerms"]]
    assert ("nvidia.com/gpu.present",) in chosen
    clouds = yaml.safe_load((FOLDER / "clouds.yaml").read_text())
    for cloud in clouds.values():
        for labels in cloud.get("accelerators", {}).values():
            assert [keys for keys in chosen if set(keys) <= set(labels)]


def test_the_node_cache_finds_what_the_program_reads(
    objects: dict[tuple[str, str], dict[str, Any]],
) -> None:
    spec = objects["DaemonSet", "node-cache"]["spec"]["template"]["spec"]
    (fetch,) = [c for c in spec["initContainers"] if c["name"] == "fetch-models"]
    assert fetch["command"] == ["python3", "-m", "shardline.weights"]
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    (generator,) = kustomization["configMapGenerator"]
    assert generator["name"] in [e.get("configMapRef", {}).get("name") for e in fetch["envFrom"]]
    assert generator["literals"] == ["SHARDLINE_CACHED_MODELS="]


def test_no_secret_lies_in_the_manifests(
    objects: dict[tuple[str, str], dict[str, Any]],
) -> None:
    assert not [name for kind, name in objects if kind == "Secret"]
