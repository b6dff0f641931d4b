"""
### One wave: some shards of a job, one task each, on this machine

Opened by `run_waves`; there is no need to trigger it by hand. Every `infer_shard` runs the worker
in a subprocess and shows the worker's log. The pool `local` decides how many run at once: an
engine on a CPU computes on one core and takes some 4 GB.

**Resume.** Clear a failed `infer_shard`: it goes on from its last committed segment, with fresh
attempts. Clearing one that is done does nothing.

**Red.** A wave is red while a shard of it has no results: it is dead. `settle_shards` of the job then
decides whether the job may go on without it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow.sdk import DAG, Param, task

from shardline_airflow.infer_operator import SHARD_RETRIES, InferShard
from shardline_airflow.job_tasks import RETRIES

with DAG(
    "infer_locally",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=8,
    max_active_tasks=1_000,
    is_paused_upon_creation=False,
    params={
        "job_id": Param(
            type="string",
            pattern="^[a-z0-9-]+$",
            title="Job",
            description="The id of a planned job.",
        ),
        "lo": Param(0, type="integer", minimum=0, title="First shard", description="Its number."),
        "hi": Param(
            1,
            type="integer",
            minimum=1,
            title="End",
            description="The number after the last shard; at most 1,000 more than the first.",
        ),
        "generation": Param(
            1,
            type="integer",
            minimum=1,
            title="Generation",
            description="Which start or resume of the job this wave belongs to.",
        ),
    },
    doc_md=__doc__,
    tags=["shardline"],
):

    @task(**RETRIES)
    def shard_numbers(params: Any = None) -> list[int]:
        from shardline_airflow import stages

        wave = {name: params[name] for name in ("job_id", "lo", "hi", "generation")}
        return stages.unfinished_shards(**wave)

    @task(trigger_rule="all_done", **RETRIES)
    def check_outcome(params: Any = None) -> None:
        from shardline_airflow import stages

        stages.check_wave(params["job_id"], params["lo"], params["hi"])

    infer_shard = InferShard.partial(task_id="infer_shard", pool="local", **SHARD_RETRIES)
    infer_shard.expand(number=shard_numbers()) >> check_outcome()
