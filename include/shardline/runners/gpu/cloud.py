"""What differs between clusters: one block of a values file, checked field by field."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from shardline.errors import NotAllowed, WrongInput

OWN_MOUNTS = {"scratch": "/tmp", "shm": "/dev/shm", "cache": "/cache"}  # noqa: S108
"""Volumes of the pod's own, where it sees them: its root file system is read-only."""
_OURS = frozenset({"SHARDLINE_DRAIN_S", "SHARDLINE_LIVENESS_FILE", "SHARDLINE_MAX_NUM_SEQS"})
"""Other fields of the pod hang on these: its grace period, its liveness probe."""


class Toleration(BaseModel):
    """What the API would refuse every pod for is refused here."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str | None = None
    operator: Literal["Equal", "Exists"] | None = None
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    tolerationSeconds: int | None = None  # noqa: N815 - Kubernetes' own name

    @model_validator(mode="after")
    def _is_taken(self) -> Toleration:
        if self.operator == "Exists" and self.value:
            raise ValueError("operator Exists has no value")
        if not self.key and self.operator != "Exists":
            raise ValueError("without a key, expected operator Exists")
        if self.tolerationSeconds is not None and self.effect != "NoExecute":
            raise ValueError("tolerationSeconds needs effect NoExecute")
        return self


class Cloud(BaseModel):
    """How pods get to GPUs here. Names are Kubernetes' own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    drain_s: float = Field(default=25, gt=0)
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    annotations: dict[str, str] = {}
    accelerators: dict[str, dict[str, str]] = {}
    priority_classes: dict[Literal["short", "long"], str] = {}
    """Queue of a job (short, long) → PriorityClass."""
    runtime_class: str | None = None
    command: tuple[str, ...] = ("python3", "-m", "shardline.worker")
    env: dict[str, str] = {}
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()

    @field_validator("env")
    @classmethod
    def _is_theirs(cls, value: dict[str, str]) -> dict[str, str]:
        if ours := sorted(_OURS.intersection(value)):
            raise ValueError(f"{ours[0]} is set from other fields of the deployment")
        return value

    @model_validator(mode="after")
    def _has_volumes(self) -> Cloud:
        names = [volume.get("name") for volume in self.volumes]
        if len({*names, *OWN_MOUNTS}) < len(names) + len(OWN_MOUNTS) or not all(names):
            raise ValueError(
                f"volumes: expected names of their own, none of {', '.join(OWN_MOUNTS)}: {names}"
            )
        places = [mount.get("mountPath") for mount in self.mounts]
        for mount in self.mounts:
            if not mount.get("mountPath") or mount.get("name") not in names:
                raise ValueError(f"mounts: expected the name of a volume and a mountPath: {mount}")
        if len({*places, *OWN_MOUNTS.values()}) < len(places) + len(OWN_MOUNTS):
            own = ", ".join(OWN_MOUNTS.values())
            raise ValueError(f"mounts: expected places of their own, none of {own}: {places}")
        return self

    def has_folder(self, folder: Path) -> bool:
        """Whether pods see a folder of this machine, at its own place."""
        mounted = (PurePosixPath(mount["mountPath"]) for mount in self.mounts)
        return any(folder.is_relative_to(path) for path in mounted)

    def labels_of(self, accelerator: str | None) -> dict[str, str]:
        """The node labels that mean an accelerator.

        Raises:
            NotAllowed: the values file does not know it.
        """
        if accelerator is None:
            return {}
        if accelerator not in self.accelerators:
            known = ", ".join(sorted(self.accelerators)) or "none"
            raise NotAllowed(
                f"gpu.accelerator: this deployment has no {accelerator}; it has: {known}"
            )
        return self.accelerators[accelerator]


def read_cloud(file: Path, name: str) -> Cloud:
    """Read one block.

    Raises:
        WrongInput: no such file or block, or a field that is wrong.
    """
    try:
        blocks = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise WrongInput(f"{file}: cannot be read ({' '.join(str(error).split())})") from error
    if not isinstance(blocks, dict) or name not in blocks:
        known = ", ".join(blocks) if isinstance(blocks, dict) else "none"
        raise WrongInput(f"{file}: no block {name}; there are: {known} (SHARDLINE_GPU_CLOUD)")
    try:
        return Cloud.model_validate(blocks[name] or {})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, (name, *first["loc"])))
        raise WrongInput(f"{file}: {field}: {first['msg']}") from error
