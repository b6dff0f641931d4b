"""Every variable that a program of ours reads its settings from."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic_settings import BaseSettings

from shardline.runners.gpu.settings import GpuSettings
from shardline.settings import Settings
from shardline.weights.cache import CacheSettings
from shardline.worker_settings import WorkerSettings

_CLASSES: tuple[type[BaseSettings], ...] = (Settings, GpuSettings, CacheSettings, WorkerSettings)


def settings_names() -> Iterator[str]:
    """The names, SHARDLINE_ROOT and so on."""
    for kind in _CLASSES:
        for field in kind.model_fields:
            yield f"{kind.model_config['env_prefix']}{field.upper()}"
