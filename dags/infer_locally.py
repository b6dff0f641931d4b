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

from airflow.sdk import DAG

from shardline_airflow.infer_operator import SHARD_RETRIES, InferShard
from shardline_airflow.wave_tasks import WAVE_DAG, wave_fields, wave_tasks

with DAG(
    "infer_locally",
    start_date=datetime(2026, 1, 1),
    params=wave_fields(),
    doc_md=__doc__,
    **WAVE_DAG,
):
    wave_tasks(InferShard.partial(task_id="infer_shard", pool="local", **SHARD_RETRIES))
