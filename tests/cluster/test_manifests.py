"""The manifests on a real cluster, under names of their own: accepted, least rights, quota, node cache."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from kubernetes import client

from deploy.embedded.environment import PROJECT
from shardline.job_blocks import EngineBlock
from shardline.models import pin_model
from tests.cluster.ground import GPU, Ground
from tests.waits import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

FOLDER = PROJECT / "include/deploy/kubernetes"
FILES = {"config.json": b"{}", "model.safetensors": os.urandom(1 << 20)}


@dataclass
class Applied:
    """One application of the manifests; names begin with `prefix`."""

    overlay: Path
    prefix: str
    namespace: str

    def kubectl(
        self, *arguments: str, given: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["kubectl", *arguments], capture_output=True, text=True, input=given, check=False
        )

    def run(self, *arguments: str, given: str | None = None) -> str:
        done = self.kubectl(*arguments, given=given)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def as_airflow(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What Airflow's account is answered."""
        account = f"system:serviceaccount:{self.namespace}:{self.prefix}shardline-airflow"
        return self.kubectl("--namespace", self.namespace, "--as", account, *arguments)


@pytest.fixture(scope="module")
def applied(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Applied]:
    word = secrets.token_hex(3)
    made = Applied(tmp_path_factory.mktemp("overlay"), f"t{word}-", f"test-{word}")
    write_overlay(made, ground)
    # a dry run of what lies in a namespace needs the namespace
    made.run("create", "namespace", made.namespace)
    try:
        made.run("apply", "--dry-run=server", "--validate=strict", "-k", str(made.overlay))
        made.run("apply", "--validate=strict", "-k", str(made.overlay))
        # what is applied is not yet what the API server's and the quota's watchers have seen
        until("rights", lambda: "yes" in made.as_airflow("auth", "can-i", "create", "pods").stdout)
        counted = ("--for=jsonpath={.status.hard}", "--timeout=180s")
        made.run("wait", "resourcequota", "--all", *counted, "-n", made.namespace)
        yield made
    finally:
        made.kubectl("delete", "--ignore-not-found", "--timeout=60s", "-k", str(made.overlay))


def write_overlay(made: Applied, ground: Ground) -> None:
    """As a user does: another name, the images, the cache folder, and the nodes it is for."""
    (made.overlay / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "namespace": made.namespace,
                "namePrefix": made.prefix,
                "resources": [os.path.relpath(FOLDER, made.overlay.resolve())],
                "patches": [
                    {
                        "target": {"kind": "DaemonSet"},
                        "patch": json.dumps(node_cache_here(made.overlay, ground)),
                    }
                ],
                "configMapGenerator": [
                    {
                        "name": "cached-models",
                        "behavior": "merge",
                        "literals": ["SHARDLINE_CACHED_MODELS=s3://lake/cached-model"],
                    }
                ],
            }
        )
    )


def node_cache_here(folder: Path, ground: Ground) -> list[dict[str, Any]]:
    """The changes for nodes that run this checkout from their own disk (see worker_pod.py)."""
    pod = "/spec/template/spec"
    image = ground.worker_image or "shardline-worker"
    changes: list[dict[str, Any]] = [
        {"op": "remove", "path": f"{pod}/affinity"},
        {"op": "replace", "path": f"{pod}/volumes/0/hostPath/path", "value": str(folder / "cache")},
        {"op": "replace", "path": f"{pod}/containers/0/image", "value": ground.image},
        {"op": "add", "path": f"{pod}/containers/0/command", "value": ["sleep", "3600"]},
        {
            "op": "replace",
            "path": f"{pod}/initContainers/1/command/0",
            "value": ground.worker_python,
        },
        {
            "op": "add",
            "path": f"{pod}/initContainers/1/env/-",
            "value": {"name": "PYTHONPATH", "value": str(PROJECT / "include")},
        },
    ]
    for container in (0, 1):
        path = f"{pod}/initContainers/{container}"
        changes.append({"op": "replace", "path": f"{path}/image", "value": image})
        for n, mount in enumerate(ground.worker_mounts):
            value = {"name": f"node-{n}", "mountPath": mount, "readOnly": True}
            changes.append({"op": "add", "path": f"{path}/volumeMounts/-", "value": value})
    for n, mount in enumerate(ground.worker_mounts):
        value = {"name": f"node-{n}", "hostPath": {"path": mount}}
        changes.append({"op": "add", "path": f"{pod}/volumes/-", "value": value})
    return changes


def test_what_is_applied_is_what_the_files_say(applied: Applied) -> None:
    assert applied.kubectl("diff", "-k", str(applied.overlay)).returncode == 0


@pytest.mark.parametrize(
    ("may", "verb", "what"),
    [
        (True, "create", "pods"),
        (True, "get", "pods"),
        (True, "list", "pods"),
        (True, "patch", "pods"),
        (True, "delete", "pods"),
        (True, "get", "pods/log"),
        (True, "list", "resourcequotas"),
        (False, "create", "pods/exec"),
        (False, "create", "pods/eviction"),
        (False, "update", "pods"),
        (False, "deletecollection", "pods"),
        (False, "get", "secrets"),
        (False, "get", "configmaps"),
        (False, "list", "nodes"),
        (False, "create", "serviceaccounts/token"),
    ],
)
def test_airflow_has_the_rights_it_uses(applied: Applied, may: bool, verb: str, what: str) -> None:
    resource, _, part = what.partition("/")  # kubectl takes `pods/log` for a pod named log
    answer = applied.as_airflow("auth", "can-i", verb, resource, f"--subresource={part}")
    assert answer.stdout.strip() == ("yes" if may else "no"), answer.stderr


def test_airflow_has_no_rights_elsewhere(applied: Applied) -> None:
    account = f"system:serviceaccount:{applied.namespace}:{applied.prefix}shardline-airflow"
    answer = applied.kubectl("auth", "can-i", "list", "pods", "--as", account, "-n", "default")
    assert answer.stdout.strip() == "no"


def pod(ground: Ground, applied: Applied, name: str, **limits: str) -> str:
    container = {"name": "base", "image": ground.image, "command": ["sleep", "600"]}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "finalizers": ["shardline/keep"]},
            "spec": {
                "restartPolicy": "Never",
                "serviceAccountName": f"{applied.prefix}shardline-worker",
                "priorityClassName": f"{applied.prefix}shardline-long",
                "terminationGracePeriodSeconds": 1,
                "containers": [container | {"resources": {"limits": limits}}],
            },
        }
    )


def test_airflow_sends_a_pod_that_stays_until_its_finalizer_is_off(
    applied: Applied, ground: Ground, tmp_path: Path
) -> None:
    file = tmp_path / "pod.json"
    file.write_text(pod(ground, applied, "kept"))
    assert applied.as_airflow("create", "-f", str(file)).returncode == 0
    assert applied.as_airflow("delete", "pod", "kept", "--wait=false").returncode == 0
    assert applied.as_airflow("get", "pod", "kept").returncode == 0
    patch = '{"metadata": {"finalizers": null}}'
    assert applied.as_airflow("patch", "pod", "kept", "-p", patch).returncode == 0
    applied.run("wait", "pod/kept", "--for=delete", "--timeout=180s", "-n", applied.namespace)


def test_a_worker_has_no_token_for_the_api(
    applied: Applied, ground: Ground, api: client.CoreV1Api
) -> None:
    body = json.loads(pod(ground, applied, "tokenless"))
    del body["metadata"]["finalizers"]
    made = api.create_namespaced_pod(applied.namespace, body)
    assert not made.spec.volumes
    assert made.spec.priority == -10
    assert made.spec.preemption_policy == "Never"
    api.delete_namespaced_pod("tokenless", applied.namespace, grace_period_seconds=0)


def test_a_pod_over_the_quota_is_refused(
    applied: Applied, ground: Ground, api: client.CoreV1Api
) -> None:
    body = json.loads(pod(ground, applied, "greedy", **{GPU: "65"}))
    with pytest.raises(client.ApiException) as caught:
        api.create_namespaced_pod(applied.namespace, body)
    assert caught.value.status == 403
    assert "exceeded quota" in caught.value.body


def test_a_node_has_the_models_before_a_worker_needs_them(
    applied: Applied, ground: Ground, bucket: dict[str, str]
) -> None:
    if ground.worker_image is None:
        pytest.skip("TEST_WORKER_IMAGE does not say what workers run in")
    s3 = boto3.client("s3")
    for name, content in FILES.items():
        s3.put_object(Bucket="lake", Key=f"cached-model/{name}", Body=content)
    s3.close()
    keys = [f"--from-literal={name}={value}" for name, value in bucket.items()]
    applied.run("create", "secret", "generic", "store", "-n", applied.namespace, *keys)
    # the first start has found no keys: the next one has them
    cache = f"daemonset/{applied.prefix}node-cache"
    applied.run("rollout", "restart", cache, "-n", applied.namespace)
    applied.run("rollout", "status", cache, "-n", applied.namespace, "--timeout=400s")
    commit = pin_model(EngineBlock(model="s3://lake/cached-model"))
    folder = applied.overlay / "cache/models" / f"s3-{commit}"
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert folder.stat().st_uid == 1000
