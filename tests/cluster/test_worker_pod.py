"""The real worker in real pods: a GPU each, an object store over the network, and the pod's fates."""

from pathlib import Path
from typing import Any

import pytest

from samples.tiny_model import make_tiny_model
from shardline.plan import keep_settings
from shardline.reasons import AttemptEnd
from shardline.store import open_store
from tests.cluster.ground import Ground
from tests.cluster.pods import Pod, Pods, disruption, end_of
from tests.cluster.worker_pod import PROJECT, compile_engine, worker_pod
from tests.worker.prepared import Prepared, prepare

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ROWS = [f"document number {n}" for n in range(300)]


class Shard:
    """One planned shard in the bucket, and the pods that work on it."""

    def __init__(
        self, ground: Ground, pods: Pods, bucket: dict[str, str], prepared: Prepared
    ) -> None:
        self._ground, self._pods, self._bucket = ground, pods, bucket
        self.prepared = prepared

    def start(self, **options: Any) -> Pod:
        return self._pods.start(worker_pod(self._ground, self.prepared, self._bucket, **options))

    def finish(self) -> None:
        """Run one more pod, which must end well; a quick one, whatever the ones before were."""
        plan = self.prepared.plan
        job = plan.job_file
        assert job.local is not None
        block = job.local.model_copy(update={"engine_args": {"max_num_seqs": 4}})
        keep_settings(self.prepared.store, plan, job.model_copy(update={"local": block}))
        self.start().wait_exit(0)

    def assert_whole(self) -> None:
        """Every row has one result."""
        assert [line.custom_id for line in self.prepared.results()] == self.prepared.ids

    def assert_once(self) -> None:
        """And none was committed twice: each pod had ended before the next began."""
        self.assert_whole()
        committed = self.prepared.committed()
        assert len(committed) == len(set(committed))


@pytest.fixture
def make_shard(
    ground: Ground, pods: Pods, bucket: dict[str, str], gpus: int, tmp_path: Path
) -> Any:
    if ground.worker_image is None:
        pytest.skip("TEST_WORKER_IMAGE names no image of the worker")

    def make(texts: list[str], engine: dict[str, Any]) -> Shard:
        store = open_store(f"s3://lake/{tmp_path.name}")
        return Shard(ground, pods, bucket, prepare(tmp_path, texts, store=store, local=engine))

    return make


SLOW = {"latency_s": 0.4}
"""300 rows in four slots take 30 s: whatever this process waits for, a pod is at work after a segment."""


def stub(**args: float) -> dict[str, Any]:
    return {"model": "stub", "engine": "stub", "engine_args": {"max_num_seqs": 4, **args}}


def test_a_pod_runs_a_shard_and_its_attempt_names_the_pod(make_shard: Any) -> None:
    shard = make_shard(ROWS, stub())
    state = shard.start().wait_exit(0)
    shard.assert_once()
    (attempt,) = shard.prepared.attempts()
    assert (attempt.pod_uid, attempt.node) == (state.metadata.uid, state.spec.node_name)


@pytest.mark.protocol(12)
def test_an_evicted_pod_drains_with_exit_75_and_the_next_one_resumes(make_shard: Any) -> None:
    shard = make_shard(ROWS, stub(**SLOW))
    pod = shard.start()
    pod.wait_running()
    pod.read_until("segment 1 committed")
    pod.evict()
    state = pod.wait_exit(75)
    assert disruption(state) == "EvictionByEvictionAPI"
    shard.finish()
    shard.assert_once()
    first, second = shard.prepared.attempts()
    assert (first.end, second.end) == (AttemptEnd.DRAINED, AttemptEnd.DONE)
    assert second.resumed_rows == first.counts.results > 0


@pytest.mark.protocol(9)
def test_a_pod_removed_without_a_word_leaves_its_segments_to_the_next(make_shard: Any) -> None:
    shard = make_shard(ROWS, stub(**SLOW))
    pod = shard.start()
    pod.wait_running()
    pod.read_until("segment 1 committed")
    pod.delete(grace_s=0)
    pod.wait_gone()
    shard.finish()
    shard.assert_whole()  # the first may have worked on for a moment (PROTOCOL 8)
    assert shard.prepared.attempts()[1].resumed_rows > 0


@pytest.mark.protocol(8)
def test_two_pods_on_one_shard_make_one_result(make_shard: Any) -> None:
    shard = make_shard(ROWS, stub(latency_s=0.02))
    first, second = shard.start(), shard.start()
    for pod in (first, second):
        pod.wait_exit(0)
    assert [line.custom_id for line in shard.prepared.results()] == shard.prepared.ids


def test_a_worker_over_its_memory_is_killed_and_the_next_one_resumes(make_shard: Any) -> None:
    shard = make_shard(ROWS, stub())
    ended = end_of(shard.start(memory="24Mi").wait_ended())
    assert (ended.reason, ended.exit_code) == ("OOMKilled", 137)
    shard.finish()
    shard.assert_once()


@pytest.fixture
def tiny(ground: Ground) -> dict[str, Any]:
    """A real engine whose model and byte code every pod finds on its node's disk."""
    model = make_tiny_model(PROJECT / "var" / "models" / "tiny")
    if not any(model.is_relative_to(folder) for folder in ground.worker_mounts):
        pytest.skip("pods of this cluster do not see this machine's disk, where the model is")
    compile_engine()
    args = {"max_model_len": 512, "max_num_seqs": 4}
    return {"model": str(model), "engine": "vllm", "engine_args": args}


@pytest.mark.timeout(1_200)
def test_the_real_engine_in_an_evicted_pod_loses_and_doubles_nothing(
    make_shard: Any, tiny: dict[str, Any]
) -> None:
    shard = make_shard([f"{text} " * 20 for text in ROWS * 4], tiny)
    pod = shard.start()
    pod.wait_running()
    pod.read_until("segment 1 committed")
    pod.evict()
    pod.wait_exit(75)
    shard.start().wait_exit(0, timeout_s=600)
    shard.assert_once()
    first, second = shard.prepared.attempts()
    assert second.resumed_rows == first.counts.results > 0
