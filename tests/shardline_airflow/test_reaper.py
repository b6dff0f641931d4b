"""What a wave has left in the cluster is removed, and nothing else."""

from __future__ import annotations

from kubernetes import client

from shardline.runners.gpu.errand import store_labels, work_labels
from shardline_airflow.pod_api import PodApi
from shardline_airflow.reaper import reap, reap_older
from tests.kubernetes_api import FakeKubernetes, FakePod, fake_kubernetes

RUN = "ticket-triage-" + "long-" * 12 + "0123abcd-w0-g1"


ROOT = "s3://lake/shardline"


def put(server: FakeKubernetes, name: str, run_id: str, root: str = ROOT) -> FakePod:
    from airflow.providers.cncf.kubernetes.pod_generator import make_safe_label_value

    run = {"dag_id": "infer_on_gpu", "run_id": make_safe_label_value(run_id)}
    body = {
        "metadata": {
            "name": name,
            "uid": f"uid of {name}",
            "labels": run | store_labels(root),
            "finalizers": ["shardline/keep"],
        },
        "spec": {"containers": [{"name": "base"}]},
        "status": {"phase": "Pending"},
    }
    server.pods[name] = FakePod(body, server)
    return server.pods[name]


def test_what_older_generations_have_left_is_removed_too() -> None:
    with fake_kubernetes() as server:
        for generation in (1, 2, 3):
            pod = put(server, f"g{generation}", RUN)
            work = work_labels(ROOT, "job", "shard-00000-000", generation)
            pod.object["metadata"]["labels"] = work
        elsewhere = put(server, "of another job", RUN)
        elsewhere.object["metadata"]["labels"] = work_labels(ROOT, "other", "shard-00000-000", 1)
        configuration = client.Configuration(host=f"http://127.0.0.1:{server.port}")
        api = PodApi(client.CoreV1Api(client.ApiClient(configuration)), "shardline")
        assert reap_older(api, ROOT, "job", 2) == 1
        assert set(server.pods) == {"g2", "g3", "of another job"}


def test_living_and_ended_pods_of_the_wave_are_removed_and_those_of_others_stay() -> None:
    with fake_kubernetes() as server:
        put(server, "alive", RUN).run()
        put(server, "ended", RUN).end(75)
        put(server, "other", RUN.replace("w0", "w1")).run()
        put(server, "of another Airflow", RUN, root="s3://lake/staging").run()
        configuration = client.Configuration(host=f"http://127.0.0.1:{server.port}")
        api = PodApi(client.CoreV1Api(client.ApiClient(configuration)), "shardline")
        assert reap(api, ROOT, "infer_on_gpu", RUN) == 2
        assert set(server.pods) == {"other", "of another Airflow"}
        assert reap(api, ROOT, "infer_on_gpu", RUN) == 0


def test_a_pod_that_a_task_sends_after_it_was_ended_is_removed_too() -> None:
    """A task learns from its next heartbeat that a person has ended it."""
    with fake_kubernetes() as server:
        put(server, "alive", RUN).run()
        configuration = client.Configuration(host=f"http://127.0.0.1:{server.port}")
        api = PodApi(client.CoreV1Api(client.ApiClient(configuration)), "shardline")

        def send_late(_: float) -> None:
            put(server, "late", RUN)

        assert reap(api, ROOT, "infer_on_gpu", RUN, may_come=True, pause=send_late) == 2
        assert not server.pods


def test_a_pod_that_drains_already_is_not_called_left_behind() -> None:
    with fake_kubernetes() as server:
        pod = put(server, "draining", RUN)
        pod.run()
        pod.delete()
        pod.object["metadata"]["finalizers"] = None
        configuration = client.Configuration(host=f"http://127.0.0.1:{server.port}")
        api = PodApi(client.CoreV1Api(client.ApiClient(configuration)), "shardline")
        assert reap(api, ROOT, "infer_on_gpu", RUN) == 0
        assert not [call for call in server.calls if call[0] != "GET"]
