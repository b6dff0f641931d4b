"""
### Run a job's dead letters again

**Use.** *Trigger*, give the job's id or name, and run: every dead letter that may do better when it
runs again does so, and what segments of lost workers hold by now is taken as it is. Choose *Reasons*
for some of them only. With other settings (a larger *Max tokens*, another *Model*) all of them are
run, the hopeless ones too.

**Read.** The whole job is published anew, as another version of the same partition: what had a result
keeps it, and each row says in `job_id` and `model` who answered it. The log of `check_outcome` has the
outcome in one line; `shardline dead-letters NAME` lists what still has no result.

**Resume.** A replay is a job of its own, named like its parent with `-r1`, `-r2` ...: clear the task
that failed, with what follows it. Trigger the same again, and it goes on with the replay that is open,
or does nothing when nothing is left. One replay of a job is open at a time.

**Stop.** `shardline cancel ID` stops its workers; `shardline replay JOB --abandon` gives the replay up
for good, and makes room for another.

**Red.** The last line of the failed task's log says what is wrong: another replay is open, another job
has replaced the one that was to be completed, or its shards were cleaned up.
"""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, AssetAlias

from shardline_airflow.job_tasks import replay_tasks
from shardline_airflow.replay_form import replay_form

with DAG(
    "replay_dead_letters",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=4,
    max_active_tasks=1_000,
    is_paused_upon_creation=False,
    params=replay_form(),
    doc_md=__doc__,
    tags=["shardline"],
):
    replay_tasks(AssetAlias("shardline"))
