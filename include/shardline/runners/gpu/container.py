"""The worker's container: what it runs, may use, may touch and is told. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardline.errors import WrongInput
from shardline.job_blocks import GpuBlock
from shardline.runners.gpu.cloud import OWN_MOUNTS, Cloud
from shardline.runners.gpu.errand import Errand
from shardline.runners.gpu.facts import CONTAINER
from shardline.runners.gpu.history import Lessons
from shardline.runners.gpu.settings import GpuSettings

_SCRATCH, _CACHE = OWN_MOUNTS["scratch"], OWN_MOUNTS["cache"]
_ALIVE = f"{_SCRATCH}/alive"
_CACHE_PATIENCE_S = 120.0
_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def count_gpus(engine_args: Mapping[str, Any]) -> int:
    """How many GPUs one engine takes: the product of its parallel sizes.

    Raises:
        WrongInput: one of them is no positive number.
    """
    gpus = 1
    for name in _SIZES:
        size = engine_args.get(name, 1)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise WrongInput(f"gpu.engine_args.{name}: expected a number of GPUs, found {size!r}")
        gpus *= size
    return gpus


def make_container(
    errand: Errand,
    block: GpuBlock,
    settings: GpuSettings,
    cloud: Cloud,
    lessons: Lessons,
    own_env: Mapping[str, str],
) -> dict[str, Any]:
    """The container; see `pod.build_pod` for the arguments and the errors."""
    return {
        "name": CONTAINER,
        "image": errand.image,
        "imagePullPolicy": "IfNotPresent",
        # exec form: the worker is the first process and gets SIGTERM itself, its engine does not
        "command": list(cloud.command),
        "args": [
            *("--job", f"{errand.root.rstrip('/')}/jobs/{errand.job_id}"),
            *("--shard", errand.shard),
            *("--generation", str(errand.generation)),
            *("--attempt", errand.attempt),
        ],
        "env": _env(settings, cloud, lessons, own_env),
        "envFrom": [{"secretRef": name} for name in named(settings.store_secret) or ()],
        "resources": _resources(block, settings),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "livenessProbe": _liveness(settings.alive_s),
        "volumeMounts": [
            *({"name": name, "mountPath": place} for name, place in OWN_MOUNTS.items()),
            *cloud.mounts,
        ],
    }


def _resources(block: GpuBlock, settings: GpuSettings) -> dict[str, Any]:
    both = {"memory": settings.memory, "ephemeral-storage": settings.ephemeral_storage}
    if settings.resource:
        both[settings.resource] = str(count_gpus(block.engine_args))
    return {"requests": {"cpu": settings.cpu, **both}, "limits": both}


def _env(
    settings: GpuSettings, cloud: Cloud, lessons: Lessons, own_env: Mapping[str, str]
) -> list[dict[str, Any]]:
    values = {
        "HOME": _SCRATCH,
        # the uid has no name in most images, and some libraries ask for one when they are imported
        "USER": "shardline",
        "PYTHONUNBUFFERED": "1",
        "SHARDLINE_DRAIN_S": f"{cloud.drain_s:g}",
        "SHARDLINE_LIVENESS_FILE": _ALIVE,
        "SHARDLINE_MODEL_CACHE": f"{_CACHE}/models",
        "HF_HOME": f"{_CACHE}/hub",
        "VLLM_CACHE_ROOT": f"{_CACHE}/vllm",
        "TRITON_CACHE_DIR": f"{_CACHE}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{_CACHE}/inductor",
        "FLASHINFER_WORKSPACE_BASE": f"{_CACHE}/flashinfer",
        "CUDA_CACHE_PATH": f"{_CACHE}/cuda",
        # Kubernetes replaces $(NAME) and $$ in values; these are meant as they are. An empty one is unset
        **{name: v.replace("$", "$$") for name in settings.worker_env if (v := own_env.get(name))},
        **cloud.env,
    }
    if settings.cache.startswith("/"):  # the node cache gives it to the worker's user
        values.setdefault("SHARDLINE_CACHE_PATIENCE_S", f"{_CACHE_PATIENCE_S:g}")
    if lessons.max_num_seqs is not None:
        values["SHARDLINE_MAX_NUM_SEQS"] = str(lessons.max_num_seqs)
    fields = {"SHARDLINE_POD_UID": "metadata.uid", "SHARDLINE_NODE": "spec.nodeName"}
    env: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in values.items()]
    env += [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in fields.items()
    ]
    if settings.hf_token_secret:
        key = {"name": settings.hf_token_secret, "key": "HF_TOKEN"}
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}})
    return env


def _liveness(alive_s: int) -> dict[str, Any]:
    """Kill a worker whose loop does not turn; the file's age is taken once a minute.

    It has as long for its first touch: there is no file before Python has started.
    """
    minutes = -(-alive_s // 60)
    check = f'test -n "$(find {_ALIVE} -mmin -{minutes})"'
    return {
        "exec": {"command": ["sh", "-c", check]},
        "initialDelaySeconds": alive_s,
        "periodSeconds": 60,
        "timeoutSeconds": 20,
        "failureThreshold": 2,
    }


def make_volumes(settings: GpuSettings) -> list[dict[str, Any]]:
    """The volumes that the container mounts."""
    kind, _, name = settings.cache.partition(":")
    if not settings.cache:
        cache: dict[str, Any] = {"emptyDir": {}}
    elif kind == "claim":
        cache = {"persistentVolumeClaim": {"claimName": name}}
    else:
        cache = {"hostPath": {"path": settings.cache, "type": "DirectoryOrCreate"}}
    return [
        {"name": "scratch", "emptyDir": {"sizeLimit": settings.ephemeral_storage}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": settings.shm}},
        {"name": "cache", **cache},
    ]


def named(name: str) -> list[dict[str, str]] | None:
    """A list of one reference, or none where the deployment names nothing."""
    return [{"name": name}] if name else None
