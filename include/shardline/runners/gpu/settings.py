"""What a deployment decides about its GPU pods. Read once, passed down.

Every field is an environment variable with the prefix SHARDLINE_GPU_, e.g. SHARDLINE_GPU_IMAGE. What
differs between clouds stands in one values file (`cloud`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from shardline.runners.gpu.outcomes import Patience

_PROJECT = Path(__file__).resolve().parents[4]


class GpuSettings(BaseSettings):
    """Settings of the gpu runner; units are in the names."""

    model_config = SettingsConfigDict(env_prefix="SHARDLINE_GPU_", frozen=True)

    conn_id: str = Field(
        default="kubernetes_default",
        description="Airflow's connection to the cluster; without it the pod's own account, or "
        "KUBECONFIG.",
    )
    namespace: str = Field(default="shardline", description="Where the pods run.")
    root: str = Field(
        default="",
        description="The store as pods reach it. Empty: SHARDLINE_ROOT. It is the same store.",
    )
    image_pull_secret: str = Field(default="", description="A secret for a private registry.")
    cloud: str = Field(default="plain", description="A block of the values file.")
    clouds_file: Path = Field(
        default=_PROJECT / "include" / "deploy" / "kubernetes" / "clouds.yaml",
        description="The values file: what differs between clusters.",
    )
    service_account: str = Field(
        default="",
        description="The account whose cloud identity reads and writes the store. Its token for the "
        "Kubernetes API is not mounted.",
    )
    store_secret: str = Field(
        default="",
        description="A secret with AWS_* keys, where pods have no identity of their own.",
    )
    hf_token_secret: str = Field(
        default="", description="A secret with the key HF_TOKEN, for gated models."
    )
    resource: str = Field(
        default="nvidia.com/gpu", description="What a GPU is called here. Empty: pods ask for none."
    )
    pods: int = Field(
        default=8,
        ge=1,
        description="Pods at once: the size of Airflow's pool `gpu`. Set both to your quota.",
    )
    pods_short: int = Field(
        default=2, ge=1, description="The same for short jobs: the pool `gpu_short`."
    )
    cpu: str = Field(default="4", description="CPU requested per pod.")
    memory: str = Field(default="32Gi", description="Memory per pod: request and limit.")
    shm: str = Field(
        default="2Gi",
        description="Shared memory of a pod, counted as its memory; engines with several GPUs need it.",
    )
    ephemeral_storage: str = Field(
        default="50Gi",
        description="Local disk per pod: request and limit. A shard, its log, scratch; and the "
        "model, where there is no cache.",
    )
    cache: str = Field(
        default="",
        description="Models and compiled kernels, kept between pods: a folder of the node "
        "(/var/cache/shardline), or a volume claim (claim:NAME). Empty: each pod fetches again.",
    )
    user: int = Field(default=1_000, ge=1, description="The uid that the worker runs as.")
    grace_s: int = Field(
        default=15, ge=5, description="The pod's grace period beyond the worker's drain budget."
    )
    deadline_s: int = Field(
        default=86_400, ge=60, description="The longest life of a pod: a backstop, it drains then."
    )
    unreachable_s: int = Field(
        default=45, ge=0, description="How long a pod stays bound to a node that is not heard from."
    )
    alive_s: int = Field(
        default=300,
        ge=30,
        description="A worker whose loop stands still for so long is killed: longer than an engine's "
        "imports take on a busy machine.",
    )
    poll_s: float = Field(default=15, gt=0, description="Seconds between two looks at a pod.")
    schedule_s: float = Field(
        default=3_600, gt=0, description="The longest wait for a machine: spot GPUs are scarce."
    )
    start_s: float = Field(
        default=1_800, gt=0, description="The longest start of a container: its image has 10 GB."
    )
    image_s: float = Field(default=300, gt=0, description="How long pulling an image may fail.")
    silent_s: float = Field(
        default=300, gt=0, description="A worker on a silent node is given up after so long."
    )
    stale_s: float = Field(
        default=3_600,
        gt=0,
        description="A worker that writes nothing to the store is given up after so long, whatever "
        "its node says: longer than an engine's start and SHARDLINE_STORE_PATIENCE_S.",
    )
    worker_env: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("AWS_REGION", "AWS_ENDPOINT_URL", "SHARDLINE_SEGMENT_S", "SHARDLINE_STALL_S"),
        description="Comma-separated variables of our own environment that pods get too. No secrets: "
        "whoever may read pods can read them.",
    )

    @field_validator("worker_env", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return (
            tuple(name.strip() for name in value.split(",") if name.strip())
            if isinstance(value, str)
            else value
        )

    @property
    def patience(self) -> Patience:
        return Patience(
            schedule_s=self.schedule_s,
            image_s=self.image_s,
            start_s=self.start_s,
            silent_s=self.silent_s,
            stale_s=self.stale_s,
        )
