"""What a deployment decides: where data lives and what jobs may touch. Read once, passed down.

Every field is an environment variable with the prefix SHARDLINE_, e.g. SHARDLINE_ROOT.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

_PROJECT = Path(__file__).resolve().parents[2]


class Settings(BaseSettings):
    """Settings of the stages, the command line and the Airflow side. The worker has its own."""

    model_config = SettingsConfigDict(env_prefix="SHARDLINE_", frozen=True)

    root: str = Field(
        default=str(_PROJECT / "var" / "data"),
        description="Where jobs and published tables live: a folder, file:// or s3://bucket/prefix.",
    )
    jobs_dir: Path = Field(
        default=_PROJECT / "include" / "jobs",
        description="The folder of job files that the trigger form and the scheduled dags offer.",
    )
    corpus_prefixes: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Comma-separated prefixes that a corpus may lie under. Empty: anywhere.",
    )
    keep_days: int = Field(
        default=30,
        ge=1,
        description="Days that shards and ledgers are kept after publishing; replay needs them.",
    )
    worker_image: str | None = Field(
        default=None,
        description="The image of the worker's pods, best with its digest: name:tag@sha256:…",
    )
    aws_conn_id: str | None = Field(
        default=None,
        description="The Airflow connection with the keys of s3://. Empty: AWS_* of the environment, "
        "or the machine's own role. Pods use their own identity.",
    )

    @field_validator("worker_image", "aws_conn_id", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return value or None

    @field_validator("corpus_prefixes", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return (
            tuple(p.strip() for p in value.split(",") if p.strip())
            if isinstance(value, str)
            else value
        )
