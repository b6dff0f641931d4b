"""Find in the plan what would refuse every pod, or end every worker, of a job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from shardline.errors import WrongInput
from shardline.hub import needs_token
from shardline.job import JobFile
from shardline.job_blocks import GpuBlock
from shardline.runners.gpu.cloud import Cloud, read_cloud
from shardline.runners.gpu.container import count_gpus
from shardline.runners.gpu.settings import GpuSettings, read_gpu_settings
from shardline.store import folder_of
from shardline.worker_settings import WorkerSettings


def check_gpu_job(job: JobFile, root: str, own_env: Mapping[str, str]) -> None:
    """Hold the deployment's settings against a job; nothing for a job that runs in no pod.

    Args:
        root: SHARDLINE_ROOT.
        own_env: our environment; SHARDLINE_GPU_WORKER_ENV names what of it pods get.

    Raises:
        WrongInput: a setting, the values file, or an engine argument is wrong, or pods do not see a
            folder that the job needs, or have no token for its model.
        NotAllowed: an accelerator that this deployment does not have.
        ModelNotFound: no such model, or not for us; where it has to be asked for with a token.
    """
    if job.run_on != "gpu" or job.gpu is None:
        return
    settings = read_gpu_settings()
    cloud = read_cloud(settings.clouds_file, settings.cloud)
    cloud.labels_of(job.gpu.accelerator)
    count_gpus(job.gpu.engine_args)
    _check_folder(cloud, settings, "SHARDLINE_ROOT", settings.root_of_pods(root))
    if job.gpu.engine != "stub" and job.gpu.model.startswith(("/", "file://")):
        _check_folder(cloud, settings, "gpu.model", job.gpu.model)
    worker = _check_worker(settings, cloud, own_env)
    longest_s = max(worker.engine_start_s, worker.store_patience_s)
    if settings.stale_s <= longest_s:
        raise WrongInput(
            f"SHARDLINE_GPU_STALE_S: a worker may write nothing for {longest_s:g} s (the start of an"
            f" engine, a store that is away), and is given up after {settings.stale_s:g} s"
        )
    _check_token(cloud, settings, job.gpu)


def _check_token(cloud: Cloud, settings: GpuSettings, block: GpuBlock) -> None:
    """Our token is not theirs: a gated model that we may have would end every worker."""
    is_of_hub = block.engine != "stub" and not block.model.startswith(("/", "file://", "s3://"))
    # the secret of the store may hold it too
    may_have_one = settings.hf_token_secret or settings.store_secret or "HF_TOKEN" in cloud.env
    if is_of_hub and not may_have_one and needs_token(block.model, block.revision):
        raise WrongInput(
            f"SHARDLINE_GPU_HF_TOKEN_SECRET: the hub gives {block.model} to the account of HF_TOKEN"
            " only, and pods have no token; name a secret of Kubernetes with the key HF_TOKEN"
        )


def _check_folder(cloud: Cloud, settings: GpuSettings, what: str, uri: str) -> None:
    folder: Path | None = folder_of(uri)
    if folder is not None and not cloud.has_folder(folder):
        raise WrongInput(
            f"{what}: pods do not see the folder {folder}; give a place on s3://, or mount it in the"
            f" block {settings.cloud} of {settings.clouds_file}"
        )


def _check_worker(
    settings: GpuSettings, cloud: Cloud, own_env: Mapping[str, str]
) -> WorkerSettings:
    """What workers read from the environment that pods get; ours is another."""
    given = {name: own_env[name] for name in settings.worker_env if own_env.get(name)}
    given |= cloud.env
    names = {f"SHARDLINE_{field.upper()}": field for field in WorkerSettings.model_fields}
    known = {field: given[name] for name, field in names.items() if name in given}
    try:
        return WorkerSettings.model_validate(WorkerSettings.model_construct().model_dump() | known)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = "_".join(["SHARDLINE", *map(str, first["loc"])]).upper()
        raise WrongInput(f"{name} (as pods get it): {first['msg']}") from error
