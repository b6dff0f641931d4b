"""A shard's task on a real cluster: every fate of its pod, with the real worker inside.

In each: no row lost or doubled, no pod left, and charged what the protocol promises.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from kubernetes import client
from kubernetes.client import CoreV1Api

from samples.tiny_model import make_tiny_model
from shardline.plan import keep_settings
from shardline.reasons import AttemptEnd, PodOutcome
from shardline.rows import Result
from shardline.runners.generations import cancel_generation
from shardline.segments import SegmentName
from shardline.shards.manifest import read_shards
from shardline.store import open_store
from shardline_airflow.pod_api import PodApi
from shardline_airflow.reaper import reap
from shardline_airflow.retries import GivenUp, TaskEnded, TryAgain
from tests.cluster.gpu_ground import gpu_environment, put_model
from tests.cluster.ground import Ground
from tests.cluster.pods import Pod, make_secret, shell
from tests.cluster.worker_pod import PROJECT, compile_engine
from tests.shardline_airflow.pod_tasks import Kept, ShardTask, Ti, gpu_job
from tests.waits import until
from tests.worker.prepared import read_results

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

Make = Callable[..., list["ClusterTask"]]


@dataclass
class ClusterTask(ShardTask):
    """The task, and the cluster's own view of its pods."""

    api: Any = None
    namespace: str = ""

    def pods(self) -> list[client.V1Pod]:
        found = self.api.list_namespaced_pod(
            self.namespace, label_selector=f"shardline/shard={self.shard}"
        )
        return list(found.items)

    def pod(self) -> Pod:
        (found,) = self.pods()
        return Pod(self.api, found.metadata.name, self.namespace)

    def segments(self) -> list[str]:
        listed = self.store.list(self.plan.layout.segments(self.shard))
        return [SegmentName.parse(found.path).attempt for found in listed]

    def wait_segment(self) -> None:
        until("a segment", lambda: bool(self.segments()))

    def results(self) -> list[Result]:
        return read_results(self.store, self.plan.layout.results(self.shard))

    def hurry(self) -> None:
        """Let later pods be quick: engine arguments are no part of what the job is."""
        job = self.plan.job_file
        assert job.gpu is not None
        block = job.gpu.model_copy(update={"engine_args": {"max_num_seqs": 4}})
        quick = job.model_copy(update={"gpu": block})
        keep_settings(self.store, self.plan, quick, self.plan.worker_image)

    def assert_whole(self) -> None:
        """Every request has one end in the results."""
        lines = self.store.read(self.plan.layout.shard(self.shard)).splitlines()
        ended = sorted(line.custom_id for line in self.results())
        assert ended == sorted(json.loads(line)["custom_id"] for line in lines)


@pytest.fixture
def make(
    ground: Ground,
    api: CoreV1Api,
    namespace: str,
    gpus: int,
    secret: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Make]:
    environment = gpu_environment(ground, tmp_path, namespace, secret)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("shardline_airflow.gpu_operator.name_map_index", lambda *_: None)
    run_id = tmp_path.name

    def make(rows: int = 60, **options: Any) -> list[ClusterTask]:
        store = open_store(os.environ["SHARDLINE_ROOT"])
        store, plan = gpu_job(tmp_path, rows, store=store, max_num_seqs=4, **options)
        return [
            ClusterTask(
                store, plan, None, Ti(run_id=run_id, map_index=n), Kept(), n, api, namespace
            )
            for n in range(len(read_shards(store, plan)))
        ]

    yield make
    left = PodApi(api, namespace)  # one that never ran is gone when its kubelet says so
    until("end of the pods that are left", lambda: not left.find({"run_id": run_id}))


@pytest.fixture
def background() -> Iterator[Callable[[ClusterTask], Future[TaskEnded | None]]]:
    with ThreadPoolExecutor() as threads:
        yield lambda task: threads.submit(task.run)


Background = Callable[[ClusterTask], "Future[TaskEnded | None]"]
SLOW = {"latency_s": 1.0}
"""60 rows in four slots take 15 s: whatever the machine does besides, a segment is there before the end."""


def said(ended: TaskEnded | None) -> str:
    assert ended is not None, "the task ended well"
    return str(ended)


def test_a_shard_runs_in_a_pod_and_its_log_is_shown(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    (task,) = make()
    with caplog.at_level("INFO"):
        assert task.run() is None
    task.assert_whole()
    (attempt,) = task.attempts()
    assert (attempt.pod_outcome, attempt.end) == (PodOutcome.DONE, AttemptEnd.DONE)
    assert attempt.pod_uid
    assert attempt.node
    assert "results committed" in caplog.text


@pytest.mark.timeout(1_200)
def test_the_real_engine_answers_a_shard_with_a_model_that_its_pod_has_fetched(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_engine()
    model = f"{os.environ['SHARDLINE_ROOT']}/models/tiny"
    put_model(make_tiny_model(PROJECT / "var" / "models" / "tiny"), model)
    monkeypatch.setenv("SHARDLINE_GPU_MEMORY", "6Gi")
    (task,) = make(model=model, max_model_len=512)
    assert task.run() is None
    task.assert_whole()
    assert not [line for line in task.results() if line.error]
    (attempt,) = task.attempts()
    assert (attempt.pod_outcome, attempt.end) == (PodOutcome.DONE, AttemptEnd.DONE)
    assert attempt.metrics.prompt_tokens_computed, "only vLLM counts them"


@pytest.mark.protocol(7)
def test_retried_after_a_success_no_second_pod_is_sent(make: Make) -> None:
    (task,) = make()
    assert task.run() is None
    assert task.run() is None
    assert len(task.attempts()) == 1


@pytest.mark.protocol(11, 12)
def test_an_evicted_pod_drains_and_its_shard_goes_on_elsewhere(
    make: Make, background: Background
) -> None:
    (task,) = make(**SLOW)
    running = background(task)
    task.wait_segment()
    task.pod().evict()
    ended = running.result()
    assert isinstance(ended, TryAgain)
    assert "free, 0 of 3: drained" in said(ended)
    assert "EvictionByEvictionAPI" in said(ended)
    task.hurry()
    assert task.run() is None
    task.assert_whole()
    first, second = task.attempts()
    assert (first.exit_code, first.pod_outcome) == (75, PodOutcome.DRAINED)
    assert second.resumed_rows == first.counts.results > 0


@pytest.mark.protocol(11)
@pytest.mark.parametrize("grace_s", [None, 0])
def test_a_deleted_pod_was_interrupted(
    make: Make, background: Background, grace_s: int | None
) -> None:
    (task,) = make(**SLOW)
    running = background(task)
    task.wait_segment()
    task.pod().delete(grace_s)
    ended = running.result()
    assert isinstance(ended, TryAgain)
    assert "free, 0 of 3" in said(ended)
    task.hurry()
    assert task.run() is None
    task.assert_whole()
    assert task.attempts()[1].resumed_rows > 0


@pytest.mark.protocol(11)
def test_all_pods_deleted_at_once_come_back_and_nobody_is_charged(
    make: Make, background: Background
) -> None:
    tasks = make(1_200, shard=400, **SLOW)
    assert len(tasks) == 3
    running = [background(task) for task in tasks]
    for task in tasks:
        task.wait_segment()
    for task in tasks:
        task.pod().delete()
    endings = [future.result() for future in running]
    assert all("free, 0 of 3" in said(ended) for ended in endings)
    tasks[0].hurry()
    for task in tasks:
        assert task.run() is None
        task.assert_whole()
        assert not any(attempt.exit_code in (70, 137) for attempt in task.attempts())


def test_a_pod_over_its_memory_is_charged_and_the_next_one_runs_less(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task,) = make()
    with monkeypatch.context() as patch:
        patch.setenv("SHARDLINE_GPU_MEMORY", "24Mi")
        patch.setenv("SHARDLINE_GPU_SHM", "1Mi")
        assert "charged, 1 of 3: oom_killed" in said(task.run())
    assert task.run() is None
    task.assert_whole()
    first, second = task.attempts()
    assert first.pod_outcome is PodOutcome.OOM_KILLED
    assert second.metrics.max_num_seqs == 2


def test_a_gpu_that_never_comes_has_an_end(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = make()
    monkeypatch.setenv("SHARDLINE_GPU_CLOUD", "nowhere")
    monkeypatch.setenv("SHARDLINE_GPU_SCHEDULE_S", "2")
    endings = [task.run() for _ in range(3)]
    assert "charged, 1 of 3: unschedulable" in said(endings[0])
    assert isinstance(endings[-1], GivenUp)


def test_an_image_that_cannot_be_pulled_has_an_end(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDLINE_WORKER_IMAGE", "localhost/no-such-image:1")
    monkeypatch.setenv("SHARDLINE_GPU_IMAGE_S", "2")
    (task,) = make()
    assert "charged, 1 of 3: image_cannot_be_pulled" in said(task.run())


def test_a_wrong_manifest_is_given_up_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = make()
    clouds = Path(os.environ["SHARDLINE_GPU_CLOUDS_FILE"])
    blocks = yaml.safe_load(clouds.read_text())
    blocks["test"]["volumes"].append({"name": "No Name", "emptyDir": {}})
    clouds.write_text(yaml.safe_dump(blocks))
    ended = task.run()
    assert isinstance(ended, GivenUp)
    assert "permanent: wrong_manifest" in said(ended)


def test_a_namespace_without_room_costs_the_shard_nothing_and_a_missing_account_does(
    make: Make, api: CoreV1Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task,) = make()
    spec = client.V1ResourceQuotaSpec(hard={"count/pods": "0"})
    body = client.V1ResourceQuota(metadata=client.V1ObjectMeta(name="none"), spec=spec)
    api.create_namespaced_resource_quota(namespace, body)
    try:
        until("quota", lambda: bool(quota_status(api, namespace)))
        until("refusal", lambda: is_pod_refused(api, namespace))
        assert "free, 0 of 3: over_quota" in said(task.run())
        spec.hard = {"count/pods": "100"}
        api.patch_namespaced_resource_quota("none", namespace, {"spec": {"hard": spec.hard}})
        until("room", lambda: quota_status(api, namespace) == spec.hard)
        monkeypatch.setenv("SHARDLINE_GPU_SERVICE_ACCOUNT", "nobody")
        assert "charged, 1 of 3: refused" in said(task.run())
        monkeypatch.delenv("SHARDLINE_GPU_SERVICE_ACCOUNT")
    finally:
        api.delete_namespaced_resource_quota("none", namespace)
    assert task.run() is None


def quota_status(api: CoreV1Api, namespace: str) -> Any:
    return api.read_namespaced_resource_quota("none", namespace).status.hard


def is_pod_refused(api: CoreV1Api, namespace: str) -> bool:
    """By who admits pods: it learns of a quota later than the quota's own status says."""
    metadata, spec = client.V1ObjectMeta(name="probe"), shell("localhost/none", "true")
    try:
        api.create_namespaced_pod(
            namespace, client.V1Pod(metadata=metadata, spec=spec), dry_run="All"
        )
    except client.ApiException as error:
        return bool(error.status == 403)
    return False


@pytest.mark.protocol(11)
def test_an_engine_that_will_not_start_kills_its_shard_after_three_pods(make: Make) -> None:
    (task,) = make(start_fails=True)
    endings = [task.run() for _ in range(3)]
    assert [type(ended) for ended in endings] == [TryAgain, TryAgain, GivenUp]
    assert "engine_failed" in said(endings[-1])
    assert {attempt.exit_code for attempt in task.attempts()} == {70}


@pytest.mark.protocol(11, 12)
def test_keys_that_the_store_refuses_are_told_from_a_store_that_is_away(
    make: Make,
    api: CoreV1Api,
    namespace: str,
    bucket: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = make_secret(api, namespace, {**bucket, "AWS_SECRET_ACCESS_KEY": "wrong"}, "wrong")
    monkeypatch.setenv("SHARDLINE_GPU_STORE_SECRET", wrong)
    (task,) = make()
    ended = task.run()
    assert isinstance(ended, TryAgain)
    assert "free, 0 of 3: store_refused" in said(ended)
    (attempt,) = task.attempts()
    assert (attempt.exit_code, attempt.end) == (77, AttemptEnd.STORE_REFUSED)


@pytest.mark.protocol(20)
def test_a_cancelled_job_leaves_no_pod_and_keeps_what_is_finished(
    make: Make, background: Background
) -> None:
    (task,) = make(**SLOW)
    running = background(task)
    task.wait_segment()
    cancel_generation(task.store, task.plan.job_id, 1)
    ended = running.result()
    assert isinstance(ended, GivenUp)
    assert "cancelled" in said(ended)
    assert task.segments()


def test_a_task_that_starts_anew_goes_on_with_its_pod(make: Make) -> None:
    (task,) = make(**SLOW)
    task.start()
    task.wait_segment()
    assert task.run() is None
    task.assert_whole()
    assert len(task.attempts()) == 1


def test_what_a_wave_leaves_is_reaped_and_drains(make: Make) -> None:
    (task,) = make(**SLOW)
    task.start()
    task.wait_segment()
    pod = task.pod()
    api = PodApi(task.api, task.namespace)
    assert reap(api, task.store.uri, "infer_on_gpu", task.ti.run_id) == 1
    pod.wait_gone()
    (attempt,) = task.attempts()
    assert attempt.end is AttemptEnd.DRAINED


def pid_of(program: str) -> int:
    if "CLUSTER_STATE" not in os.environ:
        pytest.skip("only the cluster of tests/cluster lets its programs be stopped")
    return int((Path(os.environ["CLUSTER_STATE"]) / f"{program}.pid").read_text())


def test_an_api_server_that_is_away_costs_nothing_and_doubles_no_pod(
    make: Make, background: Background
) -> None:
    (task,) = make(90, latency_s=0.3)
    running = background(task)
    task.wait_segment()
    pid = pid_of("apiserver")
    os.kill(pid, signal.SIGSTOP)
    try:
        until("results while the API is away", lambda: bool(task.store.exists(results_of(task))))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert running.result() is None
    task.assert_whole()
    assert len(task.attempts()) == 1


def results_of(task: ClusterTask) -> str:
    return task.plan.layout.results(task.shard)


def kill_worker(task: ClusterTask) -> None:
    job = task.store.uri_of(f"jobs/{task.plan.job_id}")
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "shardline.worker" in command and job in command:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.mark.protocol(11)
def test_a_lost_node_ends_the_wait_by_itself(
    make: Make, background: Background, fake_nodes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDLINE_GPU_SILENT_S", "5")
    monkeypatch.setenv("SHARDLINE_GPU_UNREACHABLE_S", "2")
    (task,) = make(2_000, **SLOW)
    running = background(task)
    task.wait_segment()
    pid = pid_of("kubelet")
    os.kill(pid, signal.SIGSTOP)
    try:
        # a machine that is lost takes the worker with it; one that lives is waited for
        kill_worker(task)
        ended = running.result(timeout=400)
        assert "free, 0 of 3: node_lost" in said(ended)
        assert not task.pods()
    finally:
        os.kill(pid, signal.SIGCONT)
    monkeypatch.delenv("SHARDLINE_GPU_SILENT_S")
    monkeypatch.setenv("SHARDLINE_GPU_UNREACHABLE_S", "45")
    task.hurry()
    assert task.run() is None
    task.assert_whole()
    assert task.attempts()[-1].resumed_rows > 0
