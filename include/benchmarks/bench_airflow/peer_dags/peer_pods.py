"""The same pods by Airflow's own KubernetesPodOperator, as a project without Shardline would map it.

Deferrable, and with the operator's defaults otherwise; but the log of a pod that only pretends to run
cannot be read, so it is not asked for. That spares it work.
"""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import DAG, Param, task

POD = "BENCH_PEER_POD"
"""Names the file with the pod: one of Shardline's, without what makes it its own."""

with DAG(
    "peer_pods",
    start_date=datetime(2026, 1, 1),
    schedule=None,
    max_active_tasks=1_000,
    is_paused_upon_creation=False,
    params={"shards": Param(1, type="integer")},
):

    @task
    def shard_numbers(params: dict[str, int] | None = None) -> list[list[str]]:
        assert params
        return [[f"--shard={n}"] for n in range(params["shards"])]

    KubernetesPodOperator.partial(
        task_id="run_pod",
        name="peer",
        namespace=os.environ["SHARDLINE_GPU_NAMESPACE"],
        config_file=os.environ["KUBECONFIG"],
        in_cluster=False,
        pod_template_dict=json.loads(Path(os.environ[POD]).read_text()),
        deferrable=True,
        get_logs=False,
        pool="gpu",
        retries=5,
    ).expand(arguments=shard_numbers())
