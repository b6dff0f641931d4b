"""A whole Airflow against the cluster, and its own processes killed, stopped or cut off.

In each the same pods go on: one pod and one attempt a shard, nothing charged, no row lost or doubled.
"""

from __future__ import annotations

import time

import pytest

from shardline.reasons import PodOutcome
from shardline.runners.gpu.errand import SHARD
from tests.cluster.stack_ground import (
    ROWS,
    ClusterStack,
    StackJob,
    cluster_program,
    family,
    stopped,
)
from tests.waits import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1_500)]

AWAY_S = 60


def assert_one_pod_each(job: StackJob, uids: set[str]) -> None:
    """The pods that ran before the fault did the whole of the work."""
    job.assert_whole()
    ends = [[(a.pod_uid, a.pod_outcome) for a in shard] for shard in job.attempts()]
    assert sorted(ends) == [[(uid, PodOutcome.DONE)] for uid in sorted(uids)]
    assert [task["try_number"] for task in job.tasks()] == [1, 1]
    assert job.committed() == ROWS


@pytest.mark.protocol(11, 21)
def test_triggerer_and_scheduler_are_killed_and_started_again_and_the_same_pods_go_on(
    stack: ClusterStack,
) -> None:
    """The executor's processes die with the scheduler, and so does the one that watches the waves."""
    job = stack.start("killed", 8.0)
    job.wait_working()
    uids, killed = job.uids(), job.triggerers()
    for component in ("triggerer", "scheduler"):
        stack.kill(component)
        stack.airflow.stack.start(component)
    until("new triggerer", lambda: killed.isdisjoint(job.triggerers()))
    assert job.wait() == "success"
    assert_one_pod_each(job, uids)


@pytest.mark.protocol(11)
def test_a_triggerer_that_stood_still_deletes_no_pod_of_the_triggers_that_were_moved(
    stack: ClusterStack,
) -> None:
    until("one triggerer", lambda: len(stack.triggerer_ids()) == 1)
    (own,) = stack.triggerer_ids()
    with stack.second_triggerer() as second:
        job = stack.start("moved", 12.0)
        until("second triggerer", lambda: len(stack.triggerer_ids()) == 2)
        job.wait_working()
        uids = job.uids()
        until("holder of the triggers", lambda: None not in job.triggerers())
        holder = min(job.triggerers())
        pid = stack.airflow.stack.pids()["triggerer"] if holder == own else second.pid
        with stopped(family(pid)):
            until("move of the triggers", lambda: holder not in job.triggerers())
        until(
            "word of it", lambda: any("kept: its task still waits" in job.log(n, 1) for n in (0, 1))
        )
        assert job.wait() == "success"
    assert_one_pod_each(job, uids)


def has_asked_in_vain(job: StackJob, number: int) -> bool:
    is_retried = job.tasks()[number]["try_number"] == 2
    return is_retried and "the Kubernetes API did not answer" in job.log(number, 2)


@pytest.mark.protocol(11)
def test_an_api_server_that_is_away_for_a_minute_costs_nothing_and_doubles_no_pod(
    stack: ClusterStack,
) -> None:
    """One shard runs through it; the other's retry comes meanwhile, and wants to send a pod."""
    job = stack.start("away", 9.0)
    job.wait_working()
    job.hurry()
    evicted = job.pods()[0]
    number = job.shards.index(evicted.metadata.labels[SHARD])
    stack.evict(evicted)
    until("end of the evicted pod", lambda: evicted.metadata.uid not in job.uids())
    with stopped([cluster_program("apiserver")]):
        time.sleep(AWAY_S)
        until("retry that asks in vain", lambda: has_asked_in_vain(job, number))
    assert job.wait() == "success"
    job.assert_whole()
    attempts = [len(shard) for shard in job.attempts()]
    assert sorted(attempts) == [1, 2]
    assert [task["try_number"] for task in job.tasks()] == attempts
    assert attempts[number] == 2
    assert has_asked_in_vain(job, number)
    assert job.charged() == [0, 0]
    assert job.committed() == ROWS
