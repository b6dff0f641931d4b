"""The pod that runs one attempt on one shard, as the Kubernetes API takes it. Pure: values in, JSON out.

Made for GPUs that may be taken away: it drains within its grace period, lets go of a silent node in
less than a minute, and keeps on the node what the next pod would have to fetch again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardline.job_blocks import GpuBlock
from shardline.runners.gpu.cloud import Cloud
from shardline.runners.gpu.container import make_container, make_volumes, named
from shardline.runners.gpu.errand import FINALIZER, JOB, Errand, label_value, labels_of
from shardline.runners.gpu.history import Lessons
from shardline.runners.gpu.settings import GpuSettings


def build_pod(
    errand: Errand,
    block: GpuBlock,
    settings: GpuSettings,
    cloud: Cloud,
    lessons: Lessons,
    own_env: Mapping[str, str],
) -> dict[str, Any]:
    """The whole pod.

    Args:
        block: the job file's `gpu`.
        lessons: what earlier attempts taught.
        own_env: our environment; what `settings.worker_env` names of it is passed on.

    Raises:
        WrongInput: an engine argument that is no number of GPUs.
        NotAllowed: an accelerator that this deployment does not have.
    """
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": round(cloud.drain_s) + settings.grace_s,
        "activeDeadlineSeconds": settings.deadline_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "serviceAccountName": settings.service_account or None,
        "priorityClassName": cloud.priority_classes.get(block.queue),
        "runtimeClassName": cloud.runtime_class,
        "imagePullSecrets": named(settings.image_pull_secret),
        "nodeSelector": {**cloud.node_selector, **cloud.labels_of(block.accelerator)},
        "tolerations": [
            *(toleration.model_dump(exclude_none=True) for toleration in cloud.tolerations),
            *_short_tolerations(settings.unreachable_s),
        ],
        "affinity": _affinity(lessons.avoid_nodes),
        "topologySpreadConstraints": [_spread(errand.job_id)],
        "securityContext": _pod_security(settings.user),
        "containers": [make_container(errand, block, settings, cloud, lessons, own_env)],
        "volumes": [*make_volumes(settings), *cloud.volumes],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": errand.pod_name,
            "namespace": settings.namespace,
            "labels": labels_of(errand),
            "annotations": {"shardline/job-id": errand.job_id, **cloud.annotations},
            "finalizers": [FINALIZER],
        },
        "spec": _without_nothing(spec),
    }


def _short_tolerations(unreachable_s: int) -> list[dict[str, Any]]:
    """Kubernetes' own are five minutes: too long for a machine that was taken away."""
    return [
        {
            "key": f"node.kubernetes.io/{what}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": unreachable_s,
        }
        for what in ("unreachable", "not-ready")
    ]


def _affinity(avoid_nodes: tuple[str, ...]) -> dict[str, Any] | None:
    """Rather not the nodes that looked sick; but a cluster that has no other must go on."""
    if not avoid_nodes:
        return None
    terms = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(avoid_nodes)}
    preference = {"weight": 100, "preference": {"matchExpressions": [terms]}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}


def _spread(job_id: str) -> dict[str, Any]:
    """Over zones where it can be had: spot machines of one zone are reclaimed together."""
    return {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {JOB: label_value(job_id)}},
    }


def _pod_security(user: int) -> dict[str, Any]:
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _without_nothing(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if value not in (None, {}, [])}
