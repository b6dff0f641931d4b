"""Run a job's waves: open them as dag runs, a few at a time, and wait until none is unfinished.

How it works: a wave's dag run is named `{job_id}-w{n}-g{generation}`. To open it is to ask for that
name; if it exists, it is joined. So this task may be retried, or run twice at once, and nothing is
doubled. It holds no state of its own: what is done is read from the store, what lives from Airflow.
So an outage of the store, or of Airflow while a job runs for days, costs it a new start and no more.

Cleared: while waves of the current generation live, they are joined. Otherwise the next generation
is opened, and its waves hold the shards without results only: each of them has fresh attempts
(PROTOCOL 11 counts within a generation), and the dead waves stay as they ended, for the record.

What it does not do: it does not stop waves that live when it is killed. Cancelling is done by a
marker in the store (PROTOCOL 20).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardline.job import JobFile
from shardline.runners.generations import current_generation
from shardline.runners.gpu.settings import read_gpu_settings
from shardline.runners.pool import PoolWatch
from shardline.runners.waves import plan_waves, unfinished_waves
from shardline_airflow.runs import DagRuns
from shardline_airflow.stages import gives_up, open_job, sits_out
from shardline_airflow.starts import join_or_open, start_of
from shardline_airflow.wave_watch import STATUS_S, Watch, done_numbers

log = logging.getLogger(__name__)

LOCAL_SLOTS = 1_000
"""More than one machine has: its pool is not known here, and more than three living waves are waste."""


@gives_up
@sits_out
def run_waves(job_id: str, context: Any) -> int:
    """Run all shards without results; return the generation that ran them.

    Raises:
        GivenUp: a brake was on (PROTOCOL 14); waves that were open have ended.
    """
    from shardline.shards.manifest import read_manifest, read_shards

    store, plan = open_job(job_id)
    shards = read_shards(store, plan)
    done = done_numbers(store, plan, shards)
    waves = unfinished_waves(plan_waves(len(shards)), done)
    if not waves:
        log.info("job %s: all %d shards have results, no wave is opened", job_id, len(shards))
        return current_generation(store, job_id)
    where = place_of(plan.job_file)
    runs, start = DagRuns(where.dag_id), start_of(context["ti"])
    generation = join_or_open(store, plan, plan_waves(len(shards)), start, runs)
    log.info(
        "job %s: generation %d, %d of %d shards to run in %d waves",
        job_id,
        generation,
        len(shards) - len(done),
        len(shards),
        len(waves),
    )
    rows_read = read_manifest(store, plan).rows_read
    watch = Watch(store, plan, shards, generation, rows_read, context["ti"], runs, where.slots)
    if where.pool is not None:
        watch.pool = PoolWatch(where.pool, where.slots)
    watch.run(waves)
    return generation


@gives_up
@sits_out
def wait_for_waves(
    job_id: str, generation: int, pause: Callable[[float], None] = time.sleep
) -> None:
    """Wait for waves that were cleared after `run_waves` had ended: they are not to be sealed."""
    from shardline.shards.manifest import read_shards

    store, plan = open_job(job_id)
    runs = DagRuns(place_of(plan.job_file).dag_id)
    waves = plan_waves(len(read_shards(store, plan)))
    names = [wave.run_id(job_id, generation) for wave in waves] if generation else []
    while n := runs.count_living(names):
        log.info("job %s: %d waves of generation %d run again, waiting", job_id, n, generation)
        pause(STATUS_S)


@dataclass(frozen=True)
class Place:
    """Where a job's waves run: a dag, the slots of its pool, and the pool if its size must be so."""

    dag_id: str
    slots: int
    pool: str | None = None


def place_of(job: JobFile) -> Place:
    """The dag of the job's runner."""
    if job.run_on == "local":
        return Place("infer_locally", LOCAL_SLOTS)
    settings = read_gpu_settings()
    if job.gpu is not None and job.gpu.queue == "short":
        return Place("infer_on_gpu_short", settings.pods_short, "gpu_short")
    return Place("infer_on_gpu", settings.pods, "gpu")
