"""What differs between clusters: one block of a values file, checked field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shardline.errors import NotAllowed, WrongInput


class Cloud(BaseModel):
    """How pods get to GPUs here. Names are Kubernetes' own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    drain_s: float = Field(default=25, gt=0)
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()
    annotations: dict[str, str] = {}
    accelerators: dict[str, dict[str, str]] = {}
    priority_classes: dict[str, str] = {}
    """Queue of a job (short, long) → PriorityClass."""
    runtime_class: str | None = None
    command: tuple[str, ...] = ("python3", "-m", "shardline.worker")
    env: dict[str, str] = {}
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()

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
