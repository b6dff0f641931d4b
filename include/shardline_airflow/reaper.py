"""Remove what a wave has left in the cluster, when none of its tasks waits for a pod any more.

A pod is left when the last process that knew it was killed: a task while it sent the pod, a triggerer
before it could ask whether a person had ended the task. Its worker drains; its rows are safe.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from shardline.runners.gpu.errand import GENERATION, JOB, label_value, store_labels
from shardline.runners.gpu.facts import read_facts
from shardline.runners.gpu.settings import read_gpu_settings
from shardline.settings import Settings
from shardline.store import open_store
from shardline_airflow.pod_api import PodApi

log = logging.getLogger(__name__)


def reap_pods(dag_id: str, run_id: str, job_id: str, generation: int) -> int:
    """Remove every pod of one wave, and those of the job's generations before; how many there were.

    Of these no wave lives, and whoever ended one with Airflow's own buttons ended its reaper with it.

    Raises:
        ControlPlaneDown: the Kubernetes API does not answer.
    """
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook

    settings = read_gpu_settings()
    root = settings.root_of_pods(open_store(Settings().root).uri)
    core = KubernetesHook(conn_id=settings.conn_id).core_v1_client
    api = PodApi(core, settings.namespace)
    return reap(api, root, dag_id, run_id) + reap_older(api, root, job_id, generation)


def reap(api: PodApi, root: str, dag_id: str, run_id: str) -> int:
    """The same with an API at hand; `root` is the store as pods reach it."""
    from airflow.providers.cncf.kubernetes.pod_generator import make_safe_label_value

    wanted = {"dag_id": dag_id, "run_id": run_id}
    labels = {name: make_safe_label_value(value) for name, value in wanted.items()}
    return _remove(api, api.find(labels | store_labels(root)))


def reap_older(api: PodApi, root: str, job_id: str, generation: int) -> int:
    """Remove what generations before this one have left."""
    found = api.find({JOB: label_value(job_id)} | store_labels(root))
    return _remove(
        api, [pod for pod in found if int(pod["metadata"]["labels"][GENERATION]) < generation]
    )


def _remove(api: PodApi, left: Sequence[dict[str, Any]]) -> int:
    for pod in left:
        facts = read_facts(pod)
        log.warning("pod %s (%s) was left behind: removed", facts.name, facts.phase)
        api.remove(facts.name, facts.uid, at_once=facts.has_ended)
    return len(left)
