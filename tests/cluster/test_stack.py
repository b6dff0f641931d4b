"""A whole Airflow against the cluster: retries, buttons and the command line around the shards' pods.

In each: no row lost or doubled, no pod left, no pod without an attempt of its own, and charged what
the protocol promises.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shardline.reasons import AttemptEnd, PodOutcome
from tests.cluster.stack_ground import JOBS, ROWS, WAVES, ClusterStack, StackJob
from tests.waits import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1_500)]


@contextmanager
def drained(node: str) -> Iterator[None]:
    """As before an upgrade: `kubectl drain` returns when every pod is gone; then the node is back."""
    options = ["--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=300s"]
    try:
        subprocess.run(["kubectl", "drain", node, *options], check=True)
        yield
    finally:
        subprocess.run(["kubectl", "uncordon", node], check=True)


@pytest.mark.protocol(11, 12)
def test_a_drained_node_costs_its_shards_nothing_and_they_go_on_from_their_segments(
    stack: ClusterStack,
) -> None:
    job = stack.start("drained", 8.0)
    job.wait_working()
    job.hurry()
    (node,) = {pod.spec.node_name for pod in job.pods()}
    with drained(node):
        until("pods that wait for a node", lambda: pending(job) == 2)
    assert job.wait() == "success"
    job.assert_whole()
    for number, (first, second) in enumerate(job.attempts()):
        assert (first.exit_code, first.pod_outcome) == (75, PodOutcome.DRAINED)
        assert second.resumed_rows == first.counts.results > 0
        assert "retry, free, 0 of 3: drained" in job.log(number, 1)
        assert "results committed" in job.log(number, 2)
    assert [task["try_number"] for task in job.tasks()] == [2, 2]
    assert [task["rendered_map_index"] for task in job.tasks()] == job.shards
    assert job.charged() == [0, 0]
    assert job.committed() == ROWS


def pending(job: StackJob) -> int:
    return [pod.status.phase for pod in job.pods()].count("Pending")


@pytest.mark.protocol(20, 21)
def test_a_job_that_was_cancelled_and_then_marked_failed_leaves_no_pod_and_redoes_nothing(
    stack: ClusterStack,
) -> None:
    """Marked failed while no triggerer runs: nobody else is there to delete the pods of such tasks."""
    job = stack.start("stopped", 10.0)
    job.wait_working()
    stack.shardline("cancel", job.plan.job_id)
    assert job.wait() == "failed"
    assert not job.pods()

    job.trigger()
    job.wait_working(generation=2)
    stack.kill("triggerer")
    job.mark_failed(generation=2)
    try:
        until("end of the pods", lambda: not job.pods())
    finally:
        stack.airflow.stack.start("triggerer")
    assert job.wait_wave(generation=2) == "failed"

    job.hurry()
    job.clear(JOBS, job.run, ["run_waves"])
    assert job.wait() == "success"
    job.assert_whole()
    assert job.committed() == ROWS
    for first, second, third in job.attempts():
        ends = [attempt.end for attempt in (first, second, third)]
        assert ends == [AttemptEnd.CANCELLED, AttemptEnd.DRAINED, AttemptEnd.DONE]
        assert second.resumed_rows == first.counts.results > 0
        assert third.resumed_rows == second.resumed_rows + second.counts.results
    assert [job.charged(generation) for generation in (1, 2, 3)] == [[0, 0]] * 3


@pytest.mark.protocol(7, 15, 21)
def test_a_dead_shard_that_is_cleared_is_published_and_a_sealed_one_names_the_replay(
    stack: ClusterStack,
) -> None:
    with spoiled(stack, [1, 2], shards={"max_requests": 34}, limits={"max_dead": 0.5}) as job:
        assert job.wait() == "failed"
    assert [task["state"] for task in job.tasks()] == ["success", "failed", "failed"]
    assert "dead, permanent: wrong_input" in job.log(1, 1)
    assert "Nothing was changed" in stack.airflow.logs(JOBS, job.run, "settle_shards")

    job.clear(WAVES, job.wave(), [["infer_shard", 1]])
    job.clear(JOBS, job.run, ["run_waves"])
    assert job.wait() == "success"
    job.assert_whole()
    assert [len(attempts) for attempts in job.attempts()] == [1, 2, 1]
    assert [task["state"] for task in job.tasks()] == ["success", "success", "failed"]

    job.clear(WAVES, job.wave(), [["infer_shard", 0], ["infer_shard", 2]])
    assert job.wait_wave() == "success"
    done, sealed = job.log(0, 2), job.log(2, 2)
    assert f"{job.shards[0]}: it has results, nothing was run" in done
    assert f"{job.shards[2]}: sealed, nothing was run" in sealed
    assert f"`shardline replay {job.plan.job_id} --reason shard_dead`" in sealed
    job.assert_whole()
    assert [len(attempts) for attempts in job.attempts()] == [1, 2, 1]


@contextmanager
def spoiled(stack: ClusterStack, numbers: list[int], **changes: Any) -> Iterator[StackJob]:
    """A job with the bytes of some shards wrong, from before a pod reads them to the end of the block."""
    store = stack.store
    stack.pause(WAVES, True)
    try:
        job = stack.start("cleared", 0.2, **changes)
        job.wait_cut()
        paths = [job.plan.layout.shard(job.shards[n]) for n in numbers]
        whole = {path: store.read(path) for path in paths}
        for path, content in whole.items():
            store.write(path, content.replace(b"document", b"Document", 1))
    finally:
        stack.pause(WAVES, False)
    try:
        yield job
    finally:
        for path, content in whole.items():
            store.write(path, content)
