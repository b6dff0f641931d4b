"""Remove what a wave has left in the cluster, when none of its tasks waits for a pod any more.

A pod is left when the last process that knew it was killed: a task while it sent the pod, a triggerer
before it could ask whether a person had ended the task. Its worker drains; its rows are safe.

A task that a person ends does not know it at once: it may still send its pod after the wave's reaper
has looked. So where a task was ended otherwise than by itself there is a second look.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from shardline.runners.gpu.errand import FINALIZER, GENERATION, JOB, label_value, store_labels
from shardline.runners.gpu.facts import read_facts
from shardline.runners.gpu.settings import read_gpu_settings
from shardline.settings import Settings
from shardline.store import open_store
from shardline_airflow.pod_api import PodApi
from shardline_airflow.runs import DagRuns
from shardline_airflow.wave_watch import INFER_TASK

log = logging.getLogger(__name__)

LATE_S = 15.0
"""A task that was ended learns it from its next heartbeat, after five seconds at most; it is killed five
seconds later, and what it had asked of the API may take a moment."""


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
    states = DagRuns(dag_id).task_states(run_id, [INFER_TASK]).values()
    may_come = any(state != "success" for state in states)
    return reap(api, root, dag_id, run_id, may_come=may_come) + reap_older(
        api, root, job_id, generation
    )


def reap(
    api: PodApi,
    root: str,
    dag_id: str,
    run_id: str,
    *,
    may_come: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Remove the pods of one wave; how many there were.

    Args:
        root: the store as pods reach it.
        may_come: whether a task that was ended may send one more: then there is a second look.
    """
    from airflow.providers.cncf.kubernetes.pod_generator import make_safe_label_value

    wanted = {"dag_id": dag_id, "run_id": run_id}
    labels = {name: make_safe_label_value(value) for name, value in wanted.items()}
    n = _remove(api, api.find(labels | store_labels(root)))
    if may_come:
        pause(LATE_S)
        n += _remove(api, api.find(labels | store_labels(root)))
    return n


def reap_older(api: PodApi, root: str, job_id: str, generation: int) -> int:
    """Remove what generations before this one have left."""
    found = api.find({JOB: label_value(job_id)} | store_labels(root))
    return _remove(
        api, [pod for pod in found if int(pod["metadata"]["labels"][GENERATION]) < generation]
    )


def _remove(api: PodApi, left: Sequence[dict[str, Any]]) -> int:
    kept = [pod for pod in left if not _is_let_go(pod)]
    for pod in kept:
        facts = read_facts(pod)
        log.warning("pod %s (%s) was left behind: removed", facts.name, facts.phase)
        api.remove(facts.name, facts.uid, at_once=facts.has_ended)
    return len(kept)


def _is_let_go(pod: dict[str, Any]) -> bool:
    """Deleted, and nothing of ours keeps it: its worker drains, then it is gone."""
    metadata = pod["metadata"]
    return bool(metadata.get("deletionTimestamp")) and FINALIZER not in (
        metadata.get("finalizers") or ()
    )
