"""The worker in a pod of its own, as plain as Kubernetes allows: what any operator has to build."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from kubernetes import client

from shardline.runners.local import worker_environment
from tests.cluster.ground import GPU, Ground
from tests.worker.prepared import QUICK, SHARD, Prepared

PROJECT = Path(__file__).parents[2]
ENGINE = ("vllm.v1.engine.async_llm", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker")
GRACE_S = 30
DRAIN = {
    "SHARDLINE_DRAIN_S": "20",
    "SHARDLINE_STALL_S": "60",
    "SHARDLINE_STORE_PATIENCE_S": "60",  # the store is a process of the same busy machine
}


def worker_pod(
    ground: Ground,
    prepared: Prepared,
    env: Mapping[str, str],
    *,
    gpus: int = 1,
    memory: str = "6Gi",
) -> client.V1PodSpec:
    """A pod that runs the job's one shard; `env` is how it reaches the store, and its settings."""
    command = [ground.worker_python, "-m", "shardline.worker", "--job", prepared.job_uri]
    volumes = {f"node-{n}": folder for n, folder in enumerate(ground.worker_mounts)}
    container = client.V1Container(
        name="base",
        image=ground.worker_image,
        image_pull_policy="IfNotPresent",
        command=[*command, "--shard", SHARD],
        env=_environment(ground, {**QUICK, **DRAIN, **env}),
        resources=client.V1ResourceRequirements(limits={GPU: str(gpus), "memory": memory}),
        security_context=client.V1SecurityContext(
            run_as_non_root=True,
            run_as_user=1000,
            read_only_root_filesystem=True,
            allow_privilege_escalation=False,
        ),
        volume_mounts=[
            client.V1VolumeMount(name="scratch", mount_path="/tmp"),
            client.V1VolumeMount(name="shm", mount_path="/dev/shm"),
            *(
                client.V1VolumeMount(name=name, mount_path=folder, read_only=True)
                for name, folder in volumes.items()
            ),
        ],
    )
    return client.V1PodSpec(
        containers=[container],
        volumes=[
            client.V1Volume(name="scratch", empty_dir=client.V1EmptyDirVolumeSource()),
            client.V1Volume(name="shm", empty_dir=client.V1EmptyDirVolumeSource(medium="Memory")),
            *(
                client.V1Volume(
                    name=name,
                    host_path=client.V1HostPathVolumeSource(path=folder, type="Directory"),
                )
                for name, folder in volumes.items()
            ),
        ],
        restart_policy="Never",
        termination_grace_period_seconds=GRACE_S,
        automount_service_account_token=False,
        enable_service_links=False,
    )


def compile_engine() -> None:
    """Write the engine's byte code: a pod cannot, and would compile vLLM anew in each process."""
    command = [sys.executable, "-c", f"import {', '.join(ENGINE)}"]
    done = subprocess.run(
        command, env=worker_environment({}), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _environment(ground: Ground, given: Mapping[str, str]) -> list[client.V1EnvVar]:
    values = {"HOME": "/tmp", **given}
    if ground.worker_mounts:  # this checkout, not what an image holds
        values["PYTHONPATH"] = str(PROJECT / "include")
    fields = {"SHARDLINE_POD_UID": "metadata.uid", "SHARDLINE_NODE": "spec.nodeName"}
    return [client.V1EnvVar(name=name, value=value) for name, value in values.items()] + [
        client.V1EnvVar(
            name=name,
            value_from=client.V1EnvVarSource(
                field_ref=client.V1ObjectFieldSelector(field_path=path)
            ),
        )
        for name, path in fields.items()
    ]
