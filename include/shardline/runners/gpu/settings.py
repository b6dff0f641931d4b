"""What a deployment decides about its GPU pods. Read once, passed down.

Every field is an environment variable with the prefix SHARDLINE_GPU_, e.g. SHARDLINE_GPU_IMAGE. What
differs between clouds stands in one values file (`cloud`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from shardline.errors import WrongInput
from shardline.runners.gpu.outcomes import Patience
from shardline.runners.gpu.quantity import parse_quantity

_PROJECT = Path(__file__).resolve().parents[4]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_RESOURCE = re.compile(rf"{_NAME.pattern}/[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?")
_SECRETS = frozenset({"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN"})


def _amount(text: str) -> str:
    if not parse_quantity(text):
        raise ValueError("expected more than 0")
    return text


def _name(text: str) -> str:
    if text and not (_NAME.fullmatch(text) and len(text) <= 253):
        raise ValueError(
            f"expected a name of Kubernetes: small letters, digits, - and ., found {text!r}"
        )
    return text


Quantity = Annotated[str, AfterValidator(_amount)]
Name = Annotated[str, AfterValidator(_name)]


class GpuSettings(BaseSettings):
    """Settings of the gpu runner; units are in the names."""

    model_config = SettingsConfigDict(env_prefix="SHARDLINE_GPU_", frozen=True)

    conn_id: str = Field(
        default="kubernetes_default",
        description="Airflow's connection to the cluster; without it the pod's own account, or "
        "KUBECONFIG.",
    )
    namespace: Name = Field(
        default="shardline", min_length=1, max_length=63, description="Where the pods run."
    )
    root: str = Field(
        default="",
        description="The store as pods reach it. Empty: SHARDLINE_ROOT. It is the same store.",
    )
    image_pull_secret: Name = Field(default="", description="A secret for a private registry.")
    cloud: str = Field(default="plain", description="A block of the values file.")
    clouds_file: Path = Field(
        default=_PROJECT / "include" / "deploy" / "kubernetes" / "clouds.yaml",
        description="The values file: what differs between clusters.",
    )
    service_account: Name = Field(
        default="",
        description="The account whose cloud identity reads and writes the store. Its token for the "
        "Kubernetes API is not mounted.",
    )
    store_secret: Name = Field(
        default="",
        description="A secret with AWS_* keys, where pods have no identity of their own.",
    )
    hf_token_secret: Name = Field(
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
    cpu: Quantity = Field(default="4", description="CPU requested per pod.")
    memory: Quantity = Field(default="32Gi", description="Memory per pod: request and limit.")
    shm: Quantity = Field(
        default="2Gi",
        description="Shared memory of a pod, counted as its memory; engines with several GPUs need it.",
    )
    ephemeral_storage: Quantity = Field(
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
        default=86_400,
        ge=60,
        le=2**31 - 1,
        description="The longest life of a pod: a backstop, it drains then.",
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
    poll_s: float = Field(default=10, gt=0, description="Seconds between two looks at a pod.")
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
        default=(
            "AWS_REGION",
            "AWS_DEFAULT_REGION",
            "AWS_ENDPOINT_URL",
            "HF_ENDPOINT",
            "SHARDLINE_ENGINE_START_S",
            "SHARDLINE_MODEL_FETCH_S",
            "SHARDLINE_SEGMENT_S",
            "SHARDLINE_STALL_S",
            "SHARDLINE_STORE_PATIENCE_S",
            "SHARDLINE_WORK_AHEAD_S",
        ),
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

    @field_validator("worker_env")
    @classmethod
    def _has_no_secret(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if secrets := sorted(_SECRETS.intersection(value)):
            raise ValueError(
                f"{secrets[0]} is a secret, and a pod's description is none: put it into a secret of"
                " Kubernetes and name that (SHARDLINE_GPU_STORE_SECRET, _HF_TOKEN_SECRET)"
            )
        return value

    @field_validator("namespace")
    @classmethod
    def _is_label(cls, value: str) -> str:
        if "." in value:
            raise ValueError(f"the name of a namespace has no dot, found {value!r}")
        return value

    @field_validator("resource")
    @classmethod
    def _is_resource(cls, value: str) -> str:
        if value and not _RESOURCE.fullmatch(value):
            raise ValueError(f"expected a name as nvidia.com/gpu, found {value!r}")
        return value

    @field_validator("cache")
    @classmethod
    def _is_cache(cls, value: str) -> str:
        kind, _, name = value.partition(":")
        is_folder = value.startswith("/") and ".." not in value.split("/")
        if value and not is_folder and not (kind == "claim" and name and _name(name)):
            raise ValueError(
                f"expected a folder of the node, or claim:NAME of a volume claim, found {value!r}"
            )
        return value

    @model_validator(mode="after")
    def _shm_is_memory(self) -> GpuSettings:
        if parse_quantity(self.shm) >= parse_quantity(self.memory):
            raise ValueError(
                f"shm ({self.shm}) counts as memory ({self.memory}) and leaves nothing of it"
            )
        return self

    def root_of_pods(self, own: str) -> str:
        """The store as pods reach it; `own` is how we do."""
        return self.root or own

    @property
    def patience(self) -> Patience:
        return Patience(
            schedule_s=self.schedule_s,
            image_s=self.image_s,
            start_s=self.start_s,
            silent_s=self.silent_s,
            stale_s=self.stale_s,
        )


def read_gpu_settings() -> GpuSettings:
    """The settings of this deployment.

    Raises:
        WrongInput: one of them is wrong; all that are, by the names of their variables.
    """
    try:
        return GpuSettings()
    except ValidationError as error:
        found = error.errors(include_url=False)
        names = (
            "_".join(["SHARDLINE_GPU", *map(str, problem["loc"])]).upper() for problem in found
        )
        text = "; ".join(f"{name}: {p['msg']}" for name, p in zip(names, found, strict=True))
        raise WrongInput(text) from error
