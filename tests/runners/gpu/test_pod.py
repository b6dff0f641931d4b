"""The pod: what a spot GPU needs, and what keeps rows and people safe."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kubernetes import client

from shardline.errors import NotAllowed, WrongInput
from shardline.job_blocks import GpuBlock
from shardline.runners.gpu.cloud import Cloud, read_cloud
from shardline.runners.gpu.container import count_gpus
from shardline.runners.gpu.errand import FINALIZER, Errand, label_value
from shardline.runners.gpu.history import Lessons
from shardline.runners.gpu.pod import build_pod
from shardline.runners.gpu.settings import GpuSettings

CLOUDS = GpuSettings().clouds_file


def make_errand(**fields: Any) -> Errand:
    given = {
        "root": "s3://lake/shardline",
        "job_id": "ticket-triage-2026-11-28-0123abcd",
        "image": "registry/worker@sha256:0",
        "shard": "shard-00003-001",
        "generation": 2,
        "attempt": "01901234-0000-7000-8000-000000000000",
        "number": 1,
    }
    return Errand(**{**given, **fields})


def make(
    *,
    cloud: Cloud | None = None,
    lessons: Lessons | None = None,
    own_env: dict[str, str] | None = None,
    block: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    return build_pod(
        make_errand(),
        GpuBlock(model="org/model", **(block or {})),
        GpuSettings(**settings),
        cloud or Cloud(),
        lessons or Lessons(),
        own_env or {},
    )


def spec(**given: Any) -> dict[str, Any]:
    found: dict[str, Any] = make(**given)["spec"]
    return found


def container(**given: Any) -> dict[str, Any]:
    found: dict[str, Any] = spec(**given)["containers"][0]
    return found


def env(**given: Any) -> dict[str, Any]:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in container(**given)["env"]}


class _Answer:
    def __init__(self, pod: dict[str, Any]) -> None:
        self.data = json.dumps(pod)


@pytest.mark.parametrize("name", ["plain", "gke", "eks", "aks"])
def test_kubernetes_own_client_knows_every_field(name: str) -> None:
    pod = make(
        cloud=read_cloud(CLOUDS, name),
        lessons=Lessons(("n1",), 8),
        service_account="worker",
        image_pull_secret="registry",
        store_secret="store",
        hf_token_secret="hub",
        cache="/var/cache/shardline",
    )
    api = client.ApiClient()
    assert api.sanitize_for_serialization(api.deserialize(_Answer(pod), "V1Pod")) == pod


def test_the_worker_is_the_first_process_and_knows_its_attempt() -> None:
    base = container()
    assert base["command"] == ["python3", "-m", "shardline.worker"]
    assert base["args"] == [
        *("--job", "s3://lake/shardline/jobs/ticket-triage-2026-11-28-0123abcd"),
        *("--shard", "shard-00003-001", "--generation", "2"),
        *("--attempt", "01901234-0000-7000-8000-000000000000"),
    ]


@pytest.mark.parametrize(
    ("engine_args", "gpus"),
    [
        ({}, 1),
        ({"tensor_parallel_size": 4}, 4),
        ({"tensor_parallel_size": 8, "pipeline_parallel_size": 2}, 16),
    ],
)
def test_a_pod_gets_as_many_gpus_as_its_engine_takes(
    engine_args: dict[str, Any], gpus: int
) -> None:
    assert count_gpus(engine_args) == gpus
    resources = container(block={"engine_args": engine_args})["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == str(gpus)
    assert resources["requests"]["nvidia.com/gpu"] == str(gpus)


@pytest.mark.parametrize("size", [0, -1, "2", 1.5, True, None])
def test_a_size_that_is_no_number_of_gpus_is_refused(size: object) -> None:
    with pytest.raises(WrongInput, match=r"gpu\.engine_args\.tensor_parallel_size"):
        count_gpus({"tensor_parallel_size": size})


def test_a_cluster_without_gpus_is_asked_for_none() -> None:
    assert set(container(resource="")["resources"]["limits"]) == {"memory", "ephemeral-storage"}


def test_memory_and_disk_are_requested_as_they_are_limited() -> None:
    resources = container(memory="7Gi", ephemeral_storage="9Gi", cpu="3")["resources"]
    assert resources["requests"]["cpu"] == "3"
    assert "cpu" not in resources["limits"]
    for name, amount in {"memory": "7Gi", "ephemeral-storage": "9Gi"}.items():
        assert resources["requests"][name] == resources["limits"][name] == amount


@pytest.mark.parametrize("name", ["plain", "gke", "eks", "aks"])
def test_the_grace_period_is_longer_than_the_drain_budget(name: str) -> None:
    cloud = read_cloud(CLOUDS, name)
    pod = make(cloud=cloud)["spec"]
    assert pod["terminationGracePeriodSeconds"] >= cloud.drain_s + 5
    assert env(cloud=cloud)["SHARDLINE_DRAIN_S"] == f"{cloud.drain_s:g}"


def test_a_silent_node_is_let_go_within_a_minute() -> None:
    short = [t for t in spec()["tolerations"] if t["key"].startswith("node.kubernetes.io/")]
    assert {t["key"].rpartition("/")[2] for t in short} == {"unreachable", "not-ready"}
    assert all(t["tolerationSeconds"] <= 60 and t["effect"] == "NoExecute" for t in short)


def test_spot_machines_are_chosen_and_their_taints_tolerated() -> None:
    cloud = read_cloud(CLOUDS, "gke")
    pod = spec(cloud=cloud, block={"accelerator": "l4"})
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-spot": "true",
        "cloud.google.com/gke-accelerator": "nvidia-l4",
    }
    assert {"cloud.google.com/gke-spot", "nvidia.com/gpu"} <= {t["key"] for t in pod["tolerations"]}
    annotations = make(cloud=cloud)["metadata"]["annotations"]
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"


def test_an_accelerator_that_the_deployment_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(NotAllowed, match=r"gpu\.accelerator: .* no b200; it has: a100, .*l4"):
        spec(cloud=read_cloud(CLOUDS, "gke"), block={"accelerator": "b200"})


def test_long_and_short_jobs_have_their_own_priority() -> None:
    cloud = Cloud(priority_classes={"short": "shardline-short"})
    assert spec(cloud=cloud, block={"queue": "short"})["priorityClassName"] == "shardline-short"
    assert "priorityClassName" not in spec(cloud=cloud)


def test_the_worker_may_do_nothing_but_its_work() -> None:
    pod, base = spec(), container()
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert base["securityContext"]["readOnlyRootFilesystem"] is True
    assert base["securityContext"]["allowPrivilegeEscalation"] is False
    assert base["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    volumes = {v["name"]: v for v in pod["volumes"]}
    mounted = {m["mountPath"]: volumes[m["name"]] for m in base["volumeMounts"]}
    assert set(mounted) == {"/tmp", "/dev/shm", "/cache"}
    assert mounted["/dev/shm"]["emptyDir"]["medium"] == "Memory"


def test_secrets_are_named_and_never_written_out() -> None:
    own = {"HF_TOKEN": "hf_secret", "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": "eu-west-1"}
    given = {"hf_token_secret": "hub", "store_secret": "store", "own_env": own}
    assert env(**given)["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "HF_TOKEN"}}
    assert container(**given)["envFrom"] == [{"secretRef": {"name": "store"}}]
    assert env(**given)["AWS_REGION"] == "eu-west-1"
    assert "hf_secret" not in json.dumps(make(**given))
    assert "AWS_SECRET_ACCESS_KEY" not in env(**given)
    assert "HF_TOKEN" not in env()


def test_the_worker_learns_where_it_is() -> None:
    found = env()
    assert found["SHARDLINE_POD_UID"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert found["SHARDLINE_NODE"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def test_the_worker_has_a_name_whatever_its_uid() -> None:
    """Its uid has none in vLLM's image, and torch, imported, asks for it."""
    assert env(user=4321)["USER"]


def test_a_worker_waits_for_who_makes_the_folder_of_a_node() -> None:
    assert float(env(cache="/var/cache/shardline")["SHARDLINE_CACHE_PATIENCE_S"]) >= 60
    for cache in ("", "claim:models"):
        assert "SHARDLINE_CACHE_PATIENCE_S" not in env(cache=cache)


def test_a_worker_whose_loop_stands_still_is_killed() -> None:
    probe = container(alive_s=300)["livenessProbe"]
    assert env()["SHARDLINE_LIVENESS_FILE"] in probe["exec"]["command"][-1]
    assert "-mmin -5" in probe["exec"]["command"][-1]
    assert probe["initialDelaySeconds"] == 300


@pytest.mark.parametrize(
    ("cache", "volume"),
    [
        ("", {"emptyDir": {}}),
        ("claim:models", {"persistentVolumeClaim": {"claimName": "models"}}),
        (
            "/var/cache/shardline",
            {"hostPath": {"path": "/var/cache/shardline", "type": "DirectoryOrCreate"}},
        ),
    ],
)
def test_models_and_compiled_kernels_are_kept_where_the_deployment_says(
    cache: str, volume: dict[str, Any]
) -> None:
    (found,) = [v for v in spec(cache=cache)["volumes"] if v["name"] == "cache"]
    assert found == {"name": "cache", **volume}
    for name in (
        "SHARDLINE_MODEL_CACHE",
        "HF_HOME",
        "VLLM_CACHE_ROOT",
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "FLASHINFER_WORKSPACE_BASE",
        "CUDA_CACHE_PATH",
    ):
        assert env()[name].startswith("/cache/")


@pytest.mark.protocol(10)
def test_a_node_that_looked_sick_is_avoided_where_there_is_another() -> None:
    (term,) = spec(lessons=Lessons(("n1", "n2")))["affinity"]["nodeAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    (expression,) = term["preference"]["matchExpressions"]
    assert expression == {
        "key": "kubernetes.io/hostname",
        "operator": "NotIn",
        "values": ["n1", "n2"],
    }
    assert "affinity" not in spec()


def test_after_a_kill_for_memory_less_runs_at_once() -> None:
    assert env(lessons=Lessons((), 32))["SHARDLINE_MAX_NUM_SEQS"] == "32"
    assert "SHARDLINE_MAX_NUM_SEQS" not in env()


def test_an_ended_pod_stays_readable_until_it_was_read() -> None:
    assert make()["metadata"]["finalizers"] == [FINALIZER]


def test_a_pod_has_an_end_whatever_happens_to_who_sent_it() -> None:
    assert spec(deadline_s=7_200)["activeDeadlineSeconds"] == 7_200
    assert spec()["restartPolicy"] == "Never"


@pytest.mark.protocol(4)
def test_who_sends_the_same_pod_twice_names_it_alike_and_nobody_else_does() -> None:
    name = make_errand().pod_name
    assert make_errand(attempt="another").pod_name == name
    for other in ({"number": 2}, {"generation": 3}, {"root": "s3://other"}, {"job_id": "x"}):
        assert make_errand(**other).pod_name != name
    assert len(name) <= 63


def test_a_label_s_value_is_never_too_long_and_stays_its_own() -> None:
    long = "a-very-long-name-of-a-job" * 4
    assert label_value("short") == "short"
    assert len(label_value(long)) == 63
    assert label_value(long) != label_value(long + "x")


def test_a_value_of_our_environment_is_passed_on_as_it_is() -> None:
    """Kubernetes replaces $(NAME), and halves $$."""
    given = {"A": "p$$w$(HOME)", "B": ""}
    found = env(own_env=given, worker_env=("A", "B", "C"))
    assert found["A"] == "p$$$$w$$(HOME)"
    assert not {"B", "C"} & found.keys()
