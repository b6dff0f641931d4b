"""
### One wave: some shards of a job, one task each, in Kubernetes pods

Opened by `run_waves` for a job with `run_on: gpu`; there is no need to trigger it by hand. Every
`infer_shard` sends a pod and waits for it without a process of its own. The pool decides how many pods
there are at once: `gpu`, and `gpu_short` for jobs with `gpu.queue: short`, which then do not wait for
the large ones. Set the pools to what your cloud lets you have.

**Progress.** A waiting task tells how many rows its worker has done; the end of the worker's log is
shown when the pod has ended, the whole of it is in the store (`logs/`).

**Retries.** A machine that was taken away, a store or an API that does not answer cost a shard
nothing: it goes on elsewhere from its last committed segment. Three pods without progress, and it is
dead. The reason of each retry is the last line of its log.

**Resume.** Clear a failed `infer_shard`: it goes on with fresh attempts. Clearing one that is done does
nothing.

**Stop.** Mark the run failed: its pods drain, and `reap_pods` removes what is left before the run is red.
The job's own run waits for its waves; mark it failed first.

**Red.** A wave is red while a shard of it has no results: it is dead. `settle_shards` of the job then
decides whether the job may go on without it.
"""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG

from shardline_airflow.gpu_operator import InferShardOnGpu
from shardline_airflow.infer_operator import SHARD_RETRIES
from shardline_airflow.wave_tasks import WAVE_DAG, wave_fields, wave_tasks

for dag_id, pool in {"infer_on_gpu": "gpu", "infer_on_gpu_short": "gpu_short"}.items():
    with DAG(
        dag_id,
        start_date=datetime(2026, 1, 1),
        params=wave_fields(),
        doc_md=__doc__,
        **WAVE_DAG,
    ):
        infer_shard = InferShardOnGpu.partial(task_id="infer_shard", pool=pool, **SHARD_RETRIES)
        wave_tasks(infer_shard, has_pods=True)
