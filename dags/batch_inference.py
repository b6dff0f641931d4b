"""
### Run a model over a corpus

**Use.** *Trigger*, choose a job file, change a few fields if you like, and run. The job file says
what is read, what is asked and which model answers; the fields here change one run only. Or give a
whole job as an object in `job`.

Start with *Sample rows*: the same job on 100 documents, published as `NAME__sample`.

**Read.** The results are a Delta table, `published/NAME` below the root: `shardline files NAME`
lists what is current. The log of `check_outcome` has the outcome in one line, and `report.html` of
the job the rest. `run_waves` says every few seconds how far the job is.

**Resume.** The same job file on the same input is the same job: trigger it again and it goes on
where it stopped, or says that it is done. Or clear the task that failed, with what follows it. What
exists is never made twice. To run all of it again, give a higher *Rerun*.

**Stop.** `shardline cancel NAME` stops its workers at their next segment, and what is finished is
kept. Marking this run as failed stops only this run: its waves go on.

**Red.** The last line of the failed task's log says what is wrong and in which field or file. Tasks
named `infer_shard` are in the dag `infer_locally` (or `infer_on_gpu`, as the job's `run_on` says), one
dag run for each wave of shards.
"""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, AssetAlias

from shardline.settings import Settings
from shardline_airflow.form import form
from shardline_airflow.job_tasks import JobSpec, job_tasks

with DAG(
    "batch_inference",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=4,
    max_active_tasks=1_000,
    is_paused_upon_creation=False,
    params=form(Settings().jobs_dir),
    doc_md=__doc__,
    tags=["shardline"],
):
    job_tasks(JobSpec(outlet=AssetAlias("shardline")))
