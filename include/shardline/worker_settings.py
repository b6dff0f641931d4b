"""What a deployment decides about its workers. Read once at the entry, passed down.

Every field is an environment variable with the prefix SHARDLINE_, e.g. SHARDLINE_DRAIN_S.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class WorkerSettings(BaseSettings):
    """Settings of one worker process; units are in the names."""

    model_config = SettingsConfigDict(env_prefix="SHARDLINE_", frozen=True)

    drain_s: float = Field(
        default=25,
        gt=0,
        description="From the first SIGTERM to the end of the process: spot machines give 30 s.",
    )
    stall_s: float = Field(
        default=180,
        gt=0,
        description="Without an ended row or a new token for so long, an engine hangs. Longer than "
        "the longest prompt takes to be read on a CPU.",
    )
    model_fetch_s: float = Field(
        default=14_400,
        gt=0,
        description="The longest fetch of a model that the machine does not have, before exit 69. The "
        "next attempt on the machine goes on from there (a model of the hub: from its last file).",
    )
    engine_start_s: float = Field(
        default=1_800,
        gt=0,
        description="The longest start of an engine: weights from disk to GPU, then compilation.",
    )
    segment_s: float = Field(
        default=60, gt=0, description="Age at which a segment is cut: what a lost worker redoes."
    )
    segment_rows: int = Field(
        default=5_000, ge=1, description="Rows at which a segment is cut: its lines are in memory."
    )
    segment_bytes: int = Field(
        default=32_000_000, ge=1, description="Size at which a segment is cut: one plain put."
    )
    store_patience_s: float = Field(
        default=600,
        ge=0,
        description="How long feeding pauses for a store that does not answer, before exit 69.",
    )
    window_factor: int = Field(
        default=3,
        ge=1,
        le=8,
        description="Rows handed to the engine, in units of its slots: enough that none waits for "
        "us, few enough that little is lost with an engine.",
    )
    group_size: int = Field(
        default=16,
        ge=2,
        le=64,
        description="Suspects fed together: a restart costs more than a small group.",
    )
    max_num_seqs: int | None = Field(
        default=None,
        ge=1,
        description="An upper bound of the engine's slots, set by the runner after an attempt that "
        "ran out of memory.",
    )
    early_rows: int = Field(
        default=500,
        ge=1,
        description="When so many first rows end for one reason that lies in the job, stop.",
    )
    work_ahead_s: float = Field(
        default=0,
        ge=0,
        description="Fill slots that fall idle at a shard's end with rows of shards that nobody has "
        "started, and go on with them for so long after the shard's own rows. 0: off.",
    )
    liveness_file: Path | None = Field(
        default=None, description="Touched every second while the worker's loop turns."
    )
    pod_uid: str | None = Field(default=None, description="The pod's uid, from the downward API.")
    node: str | None = Field(default=None, description="The machine, so that others can avoid it.")
    log_level: str = Field(default="INFO", description="Level of the worker's own log.")
