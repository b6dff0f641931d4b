"""The settings by which the gpu runner's pods run this checkout's worker on the test cluster."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from shardline.store import open_store
from tests.cluster.ground import Ground
from tests.cluster.worker_pod import PROJECT


def gpu_environment(ground: Ground, folder: Path, namespace: str, secret: str) -> dict[str, str]:
    """Environment of Airflow's side; a values file with the blocks `test` and `nowhere` in `folder`."""
    assert ground.worker_image
    block = {
        "drain_s": 20,
        "command": [ground.worker_python, "-m", "shardline.worker"],
        "env": {"PYTHONPATH": str(PROJECT / "include")} if ground.worker_mounts else {},
        "volumes": [
            {"name": f"node-{n}", "hostPath": {"path": path, "type": "Directory"}}
            for n, path in enumerate(ground.worker_mounts)
        ],
        "mounts": [
            {"name": f"node-{n}", "mountPath": path, "readOnly": True}
            for n, path in enumerate(ground.worker_mounts)
        ],
    }
    clouds = folder / "clouds.yaml"
    nowhere = {**block, "node_selector": {"no.such/label": "true"}}
    clouds.write_text(yaml.safe_dump({"test": block, "nowhere": nowhere}))
    kubeconfig = {"kube_config_path": ground.kubeconfig}
    connection = {"conn_type": "kubernetes", "extra": kubeconfig}
    return {
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(connection),
        "SHARDLINE_ROOT": f"s3://lake/{folder.name}",
        "SHARDLINE_WORKER_IMAGE": ground.worker_image,
        "SHARDLINE_SEGMENT_S": "0.3",
        "SHARDLINE_GPU_NAMESPACE": namespace,
        "SHARDLINE_GPU_CLOUD": "test",
        "SHARDLINE_GPU_CLOUDS_FILE": str(clouds),
        "SHARDLINE_GPU_STORE_SECRET": secret,
        "SHARDLINE_GPU_WORKER_ENV": "SHARDLINE_SEGMENT_S",
        "SHARDLINE_GPU_POLL_S": "0.5",
        "SHARDLINE_GPU_CPU": "100m",
        "SHARDLINE_GPU_MEMORY": "1Gi",
        "SHARDLINE_GPU_SHM": "64Mi",
        "SHARDLINE_GPU_EPHEMERAL_STORAGE": "1Gi",
        # a machine that stands still for some seconds takes its node for silent: that must not count
        "SHARDLINE_GPU_UNREACHABLE_S": "45",
    }


def put_model(folder: Path, uri: str) -> None:
    """Copy a model's folder to s3://; what is there already stays, and with it the job's id."""
    store = open_store(uri)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = file.relative_to(folder).as_posix()
        if not store.exists(name):
            store.put_same(name, file)
