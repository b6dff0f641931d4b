"""One shard in a pod: what its task makes of every end, and that no pod is doubled, leaked or killed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from airflow.sdk.definitions.retry_policy import RetryAction
from airflow.sdk.exceptions import TaskDeferred

from shardline.plan import timestamp
from shardline.reasons import AttemptEnd, ExitCode, PodOutcome
from shardline.rows import Attempt, Progress
from shardline.runners.generations import cancel_generation
from shardline.runners.gpu.errand import FINALIZER
from shardline.runners.retry import MAX_BRIEF
from shardline_airflow.pod_api import PodApi
from shardline_airflow.retries import GivenUp, TaskEnded, TryAgain, TypedRetryPolicy
from tests.factories import make_store
from tests.kubernetes_api import (
    LOST_REPLY,
    FakeKubernetes,
    FakePod,
    ago,
    fake_kubernetes,
    now,
)
from tests.results.answers import answer_shard
from tests.shardline_airflow.pod_tasks import Kept, Refusing, ShardTask, Ti, gpu_job


@pytest.fixture(scope="module")
def server() -> Iterator[FakeKubernetes]:
    with fake_kubernetes() as server:
        yield server


@pytest.fixture
def task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FakeKubernetes
) -> Iterator[ShardTask]:
    for kept in (server.pods, server.created, server.calls, server.faults):
        kept.clear()  # type: ignore[attr-defined]
    server.looks = 0
    server.log, server.on_look, server.clock_s = "", lambda _: None, 0
    server.quotas = []
    monkeypatch.setenv("SHARDLINE_WORKER_IMAGE", "registry/worker:1")
    store, plan = gpu_job(tmp_path)
    monkeypatch.setenv("SHARDLINE_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("SHARDLINE_GPU_POLL_S", "0.02")
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", server.connection())
    monkeypatch.setattr("shardline_airflow.gpu_operator.name_map_index", lambda *_: None)
    monkeypatch.setattr(
        "shardline_airflow.gpu_operator.PodApi",
        lambda core, namespace: PodApi(core, namespace, pause=lambda _: None),
    )
    task = ShardTask(store, plan, server)
    server.fate = task.answer
    yield task
    assert not server.pods, "pods are left"


def write_record(task: ShardTask, pod: FakePod, **fields: Any) -> None:
    """The worker's own record, as far as it got."""
    attempt = task.attempt_of(pod)
    fields = {"pod_uid": pod.object["metadata"]["uid"], "node": "spot-1", **fields}
    record = Attempt(attempt, task.shard, 1, "host", 1, timestamp(now()), **fields)
    task.store.write(task.plan.layout.attempt(task.shard, attempt), msgspec.json.encode(record))


def make_progress(task: ShardTask, pod: FakePod) -> None:
    """A segment that the worker committed."""
    path = task.plan.layout.segment(task.shard, task.attempt_of(pod), 1)
    task.store.put_once(path, b"")


def reason_of(ended: TaskEnded | None) -> str:
    assert ended is not None, "the task ended well"
    return str(ended)


def test_a_shard_is_done_when_its_worker_ends_well(task: ShardTask) -> None:
    assert task.run() is None
    assert task.store.exists(task.plan.layout.results(task.shard))
    assert len(task.cluster.created) == 1


def test_the_pod_that_is_sent_is_the_one_that_was_described(task: ShardTask) -> None:
    task.run()
    pod = task.cluster.created[0].sent
    assert pod["metadata"]["finalizers"] == [FINALIZER]
    assert pod["spec"]["terminationGracePeriodSeconds"] == 40
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["python3", "-m", "shardline.worker"]
    assert container["args"][1] == f"{task.store.uri}/jobs/{task.plan.job_id}"
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert {"dag_id", "task_id", "run_id", "map_index"} <= set(pod["metadata"]["labels"])


@pytest.mark.protocol(7)
def test_retried_after_a_success_nothing_is_run(
    task: ShardTask, caplog: pytest.LogCaptureFixture
) -> None:
    task.run()
    with caplog.at_level("INFO"):
        assert task.run() is None
    assert len(task.cluster.created) == 1
    assert "nothing was run" in caplog.text


def test_a_pod_left_from_a_task_that_was_killed_after_the_success_is_removed(
    task: ShardTask,
) -> None:
    task.start()
    (pod,) = task.cluster.created
    task.answer(pod)
    assert task.run() is None
    assert len(task.cluster.created) == 1


@pytest.mark.protocol(11)
@pytest.mark.parametrize(
    ("code", "disruption", "outcome"),
    [
        (75, "EvictionByEvictionAPI", PodOutcome.DRAINED),
        (137, "PreemptionByScheduler", PodOutcome.EVICTED),
        (137, "DeletionByTaintManager", PodOutcome.NODE_LOST),
        (69, None, PodOutcome.STORE_UNREACHABLE),
        (77, None, PodOutcome.STORE_REFUSED),
    ],
)
def test_an_interrupted_shard_is_tried_again_and_charged_nothing(
    task: ShardTask, code: int, disruption: str | None, outcome: PodOutcome
) -> None:
    def fate(pod: FakePod) -> None:
        pod.run()
        if disruption:
            pod.condition("DisruptionTarget", "True", disruption)
            pod.delete()
        pod.end(code)

    task.cluster.fate = fate
    ended = task.run()
    assert isinstance(ended, TryAgain)
    assert "retry, free, 0 of 3" in reason_of(ended)
    assert outcome.sentence in reason_of(ended)
    (record,) = task.attempts()
    assert (record.pod_outcome, record.exit_code) == (outcome, code)
    task.cluster.fate = task.answer
    assert task.run() is None
    first, second = task.cluster.created
    assert first.name != second.name


@pytest.mark.protocol(4)
def test_a_pod_whose_worker_wrote_no_record_gets_one_with_its_uid_and_node(
    task: ShardTask,
) -> None:
    def fate(pod: FakePod) -> None:
        pod.run()
        pod.end(137, "OOMKilled")

    task.cluster.fate = fate
    assert "charged, 1 of 3: oom_killed" in reason_of(task.run())
    (pod,) = task.cluster.created
    (record,) = task.attempts()
    assert record.attempt == task.attempt_of(pod)
    assert record.pod_uid == pod.object["metadata"]["uid"]
    assert (record.node, record.pod_outcome) == ("spot-1", PodOutcome.OOM_KILLED)
    assert record.end is None
    assert "OOMKilled" in record.message


@pytest.mark.protocol(9)
def test_what_the_worker_wrote_of_itself_stays(task: ShardTask) -> None:
    def fate(pod: FakePod) -> None:
        pod.run()
        write_record(task, pod, fed=[(0, 3)])
        pod.end(137, "OOMKilled")

    task.cluster.fate = fate
    task.run()
    (record,) = task.attempts()
    assert (record.fed, record.host, record.end) == ([(0, 3)], "host", None)
    assert record.pod_outcome is PodOutcome.OOM_KILLED


def test_after_a_kill_for_memory_the_next_pod_runs_less_at_once(task: ShardTask) -> None:
    def fate(pod: FakePod) -> None:
        pod.run()
        pod.end(137, "OOMKilled")

    task.cluster.fate = fate
    task.run()
    task.cluster.fate = task.answer
    task.run()
    first, second = task.cluster.created
    assert "SHARDLINE_MAX_NUM_SEQS" not in first.env
    assert second.env["SHARDLINE_MAX_NUM_SEQS"] == "128"


@pytest.mark.protocol(10)
def test_a_node_that_looked_sick_is_avoided_by_the_next_pod(task: ShardTask) -> None:
    def fate(pod: FakePod) -> None:
        pod.run()
        pod.end(70)

    task.cluster.fate = fate
    task.run()
    task.cluster.fate = task.answer
    task.run()
    assert "spot-1" in str(task.cluster.created[1].object["spec"]["affinity"])


@pytest.mark.protocol(11)
def test_three_pods_without_progress_and_the_shard_is_dead(task: ShardTask) -> None:
    def fate(pod: FakePod) -> None:
        pod.run()
        pod.end(70)

    task.cluster.fate = fate
    endings = [task.run() for _ in range(3)]
    assert [type(e) for e in endings] == [TryAgain, TryAgain, GivenUp]
    assert "3 attempts without progress" in reason_of(endings[-1])
    assert "engine_failed" in reason_of(endings[-1])


@pytest.mark.protocol(11)
def test_a_pod_that_brought_something_is_never_charged(task: ShardTask) -> None:
    def fate(pod: FakePod) -> None:
        pod.run()
        make_progress(task, pod)
        pod.end(137)

    task.cluster.fate = fate
    assert all(isinstance(task.run(), TryAgain) for _ in range(5))


@pytest.mark.protocol(12)
def test_a_wrong_job_is_given_up_at_once(task: ShardTask) -> None:
    def fate(pod: FakePod) -> None:
        pod.run()
        write_record(task, pod, exit_code=65, end=AttemptEnd.WRONG_INPUT, message="bad schema")
        pod.end(65)

    task.cluster.fate = fate
    ended = task.run()
    assert isinstance(ended, GivenUp)
    assert "bad schema" in reason_of(ended)


@pytest.mark.protocol(20)
def test_a_cancelled_worker_ends_its_task_without_a_retry(task: ShardTask) -> None:
    def fate(pod: FakePod) -> None:
        pod.run()
        pod.end(76)

    task.cluster.fate = fate
    ended = task.run()
    assert isinstance(ended, GivenUp)
    assert "cancelled" in reason_of(ended)


@pytest.mark.protocol(20)
def test_after_a_cancel_no_pod_is_sent(task: ShardTask) -> None:
    cancel_generation(task.store, task.plan.job_id, 1)
    assert "cancelled" in reason_of(task.run())
    assert not task.cluster.created


@pytest.mark.protocol(20)
def test_a_pod_that_still_waits_for_a_machine_is_let_go_by_a_cancel(task: ShardTask) -> None:
    """A machine would be bought for a worker that ends at once."""
    task.cluster.fate = lambda pod: pod.condition("PodScheduled", "False", "Unschedulable")
    deferral = task.start()
    cancel_generation(task.store, task.plan.job_id, 1)
    with pytest.raises(GivenUp, match="cancelled"):
        task.resume(deferral)


@pytest.mark.protocol(20)
def test_a_worker_that_runs_is_left_to_find_the_cancel_itself(task: ShardTask) -> None:
    task.cluster.fate = lambda pod: pod.run()
    deferral = task.start()
    (pod,) = task.cluster.created
    cancel_generation(task.store, task.plan.job_id, 1)
    task.cluster.on_look = lambda looks: pod.end(76) if looks == 20 else None
    assert task.watch(deferral)["stop"] == "ended"
    assert isinstance(task.run(), GivenUp)


def test_an_api_that_was_away_for_long_when_it_is_back_costs_no_pod(task: ShardTask) -> None:
    task.cluster.fate = lambda pod: pod.run()
    task.start()
    (pod,) = task.cluster.created
    lost = {"name": pod.name, "attempt": task.attempt_of(pod), "stop": "lost", "facts": None}
    with pytest.raises(TaskDeferred):
        task.go_on(lost)
    task.answer(pod)
    assert task.run() is None


@pytest.mark.parametrize("conn_id", ["kubernetes_default", "elsewhere"])
def test_a_connection_that_leads_to_no_cluster_is_given_up_with_its_name(
    task: ShardTask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, conn_id: str
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_KUBERNETES_DEFAULT")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHARDLINE_GPU_CONN_ID", conn_id)
    ended = task.run()
    assert isinstance(ended, GivenUp)
    assert f"SHARDLINE_GPU_CONN_ID: {conn_id} leads to no cluster" in reason_of(ended)


def test_a_worker_that_ended_well_without_results_is_no_success(task: ShardTask) -> None:
    def fate(pod: FakePod) -> None:
        pod.run()
        pod.end(0)

    task.cluster.fate = fate
    assert "charged, 1 of 3" in reason_of(task.run())


# pods that go


@pytest.mark.protocol(11)
def test_a_pod_that_vanished_was_interrupted(task: ShardTask) -> None:
    def fate(pod: FakePod) -> None:
        pod.run()

    task.cluster.fate = fate
    deferral = task.start()
    task.cluster.created[0].vanish()
    with pytest.raises(TryAgain, match="free, 0 of 3: deleted"):
        task.resume(deferral)


@pytest.mark.protocol(11)
@pytest.mark.parametrize(
    ("code", "ended", "said"),
    [
        (ExitCode.DRAINED, AttemptEnd.DRAINED, "free, 0 of 3: drained"),
        (ExitCode.ENGINE_FAILED, AttemptEnd.ENGINE_FAILED, "charged, 1 of 3: engine_failed"),
    ],
)
def test_of_a_pod_that_vanished_the_worker_s_record_says_the_rest(
    task: ShardTask, code: ExitCode, ended: AttemptEnd, said: str
) -> None:
    task.cluster.fate = lambda pod: pod.run()
    deferral = task.start()
    (pod,) = task.cluster.created
    write_record(task, pod, exit_code=int(code), end=ended)
    pod.vanish()
    with pytest.raises(TryAgain, match=said):
        task.resume(deferral)
    assert task.attempts()[0].end is ended


def test_a_pod_that_vanished_after_its_end_was_seen_keeps_what_was_seen(task: ShardTask) -> None:
    task.cluster.fate = lambda pod: pod.run()
    deferral = task.start()
    (pod,) = task.cluster.created
    pod.end(137, "OOMKilled")
    event = task.watch(deferral)
    pod.vanish()
    with pytest.raises(TryAgain, match="oom_killed"):
        task.go_on(event)


@pytest.mark.protocol(11)
def test_a_pod_that_hangs_on_a_lost_node_is_let_go(task: ShardTask) -> None:
    def fate(pod: FakePod) -> None:
        pod.run()
        pod.condition("DisruptionTarget", "True", "DeletionByTaintManager")
        pod.delete(at=ago(61))

    task.cluster.fate = fate
    assert "free, 0 of 3: node_lost" in reason_of(task.run())


def test_the_record_of_a_worker_that_may_still_live_is_left_to_it(task: ShardTask) -> None:
    def fate(pod: FakePod) -> None:
        pod.run()
        write_record(task, pod, fed=[(0, 1)])
        pod.delete(at=ago(61))

    task.cluster.fate = fate
    assert "node_lost" in reason_of(task.run())
    (record,) = task.attempts()
    assert (record.pod_outcome, record.exit_code) == (None, None)


def test_a_silent_node_is_let_go_when_the_worker_writes_nothing_either(task: ShardTask) -> None:
    def fate(pod: FakePod) -> None:
        pod.run(started=ago(1_000))
        pod.condition("Ready", "False", at=ago(400))

    task.cluster.fate = fate
    assert "node_lost" in reason_of(task.run())


def test_a_silent_node_whose_worker_writes_is_waited_for(task: ShardTask) -> None:
    def fate(pod: FakePod) -> None:
        pod.run(started=ago(1_000))
        pod.condition("Ready", "False", at=ago(400))
        attempt = task.attempt_of(pod)
        said = Progress(task.shard, attempt, 1, timestamp(now()), "running", 4, 2, 0, 1.0, 1.0, 1.0)
        path = task.plan.layout.progress(task.shard, attempt)
        task.store.write(path, msgspec.json.encode(said))

    task.cluster.fate = fate
    deferral = task.start()
    (pod,) = task.cluster.created
    task.cluster.on_look = lambda looks: task.answer(pod) if looks == 4 else None
    event = task.watch(deferral)
    assert event["stop"] == "ended"
    task.go_on(event)


def test_a_silent_node_that_comes_back_before_the_task_goes_on_keeps_its_pod(
    task: ShardTask,
) -> None:
    def fate(pod: FakePod) -> None:
        pod.run(started=ago(1_000))
        pod.condition("Ready", "False", at=ago(400))

    task.cluster.fate = fate
    event = task.watch(task.start())
    assert event["stop"] == "lost"
    (pod,) = task.cluster.created
    pod.object["status"]["conditions"] = []
    with pytest.raises(TaskDeferred):
        task.go_on(event)
    task.answer(pod)
    assert task.run() is None


def test_a_shard_whose_results_are_committed_is_done_however_its_pod_ended(
    task: ShardTask,
) -> None:
    def fate(pod: FakePod) -> None:
        task.answer(pod)
        pod.end(70)

    task.cluster.fate = fate
    assert task.run() is None


# pods that never ran


@pytest.mark.parametrize(
    ("waiting", "seconds", "outcome"),
    [
        ("ErrImageNeverPull", 1, PodOutcome.IMAGE_CANNOT_BE_PULLED),
        ("ImagePullBackOff", 400, PodOutcome.IMAGE_CANNOT_BE_PULLED),
        ("CreateContainerConfigError", 400, PodOutcome.WONT_START),
        ("ContainerCreating", 2_000, PodOutcome.WONT_START),
    ],
)
def test_what_never_ran_is_no_interruption(
    task: ShardTask, waiting: str, seconds: float, outcome: PodOutcome
) -> None:
    task.cluster.fate = lambda pod: pod.wait(waiting, scheduled=ago(seconds))
    endings = [task.run() for _ in range(3)]
    assert f"charged, 1 of 3: {outcome}" in reason_of(endings[0])
    assert isinstance(endings[-1], GivenUp)


def test_a_gpu_that_never_comes_has_an_end(
    task: ShardTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDLINE_GPU_SCHEDULE_S", "5")
    task.cluster.fate = lambda pod: pod.condition(
        "PodScheduled", "False", "Unschedulable", at=ago(10)
    )
    assert "charged, 1 of 3: unschedulable" in reason_of(task.run())


@pytest.mark.parametrize(
    ("status", "pods_used", "ending", "said"),
    [
        (422, 2, GivenUp, "dead, permanent: wrong_manifest"),
        # a policy, a missing account or priority class: the quota has room
        (403, 1, TryAgain, "charged, 1 of 3: refused"),
        (403, 2, TryAgain, "free, 0 of 3: over_quota"),
    ],
)
def test_a_pod_that_kubernetes_does_not_make_is_no_interruption_unless_room_is_all_it_lacks(
    task: ShardTask, status: int, pods_used: int, ending: type[TaskEnded], said: str
) -> None:
    task.cluster.quotas = [{"hard": {"pods": "2"}, "used": {"pods": str(pods_used)}}]
    task.cluster.fail(status, n=10, method="POST")
    ended = task.run()
    assert isinstance(ended, ending)
    assert said in reason_of(ended)
    assert "an injected fault" in reason_of(ended)
    (record,) = task.attempts()
    assert record.pod_uid is None


def test_a_refusal_for_a_quota_that_has_room_again_by_now_is_no_refusal(task: ShardTask) -> None:
    task.cluster.quotas = [{"hard": {"pods": "2"}, "used": {"pods": "1"}}]
    task.cluster.fail(403, n=2, method="POST")
    assert task.run() is None


def test_without_the_right_to_look_at_quotas_a_refusal_is_charged(task: ShardTask) -> None:
    task.cluster.fail(403, n=10, method="POST")
    task.cluster.fail(403, n=10, path="resourcequotas")
    assert "charged, 1 of 3: refused" in reason_of(task.run())


# an API in trouble


def test_rights_that_are_missing_for_good_have_an_end(task: ShardTask) -> None:
    task.cluster.fail(403, n=1_000, method="GET")
    endings = [task.run() for _ in range(3)]
    assert [type(e) for e in endings] == [TryAgain, TryAgain, GivenUp]
    assert "refused" in reason_of(endings[-1])


def test_an_api_that_knows_nobody_s_rights_for_a_moment_is_waited_for(task: ShardTask) -> None:
    task.cluster.fail(403, n=2, method="GET")
    assert task.run() is None
    assert not task.kept


@pytest.mark.protocol(11)
def test_outages_of_the_api_count_in_a_row_only(task: ShardTask) -> None:
    task.cluster.fail(500, n=1_000, method="POST")
    delays = [getattr(task.run(), "delay_s", 0) for _ in range(3)]
    task.cluster.faults.clear()
    task.cluster.fate = lambda pod: pod.end(75)
    task.run()
    task.cluster.fail(500, n=1_000, method="POST")
    again = task.run()
    assert isinstance(again, TryAgain)
    assert again.delay_s < delays[-1]


# a store that refuses Airflow's own keys


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> type[Refusing]:
    monkeypatch.setattr("shardline_airflow.buckets.open_store", Refusing)
    monkeypatch.setattr(Refusing, "is_wrong", True)
    return Refusing


@pytest.mark.protocol(12)
def test_keys_that_are_mended_within_minutes_cost_the_shard_nothing(
    task: ShardTask, refusing: type[Refusing]
) -> None:
    endings = [task.run() for _ in range(3)]
    assert all(isinstance(ended, TryAgain) for ended in endings)
    assert "shard number 0: retry, free, 0 of 3: store_refused" in reason_of(endings[0])
    assert "asked with Airflow's keys" in reason_of(endings[0])
    refusing.is_wrong = False
    task.cluster.fate = lambda pod: pod.end(75)
    assert "drained" in reason_of(task.run())
    refusing.is_wrong = True  # counted anew
    assert [type(task.run()) for _ in range(MAX_BRIEF)] == [TryAgain] * MAX_BRIEF
    refusing.is_wrong = False
    task.cluster.fate = task.answer
    assert task.run() is None


class Away(Kept):
    """The task's state while Airflow does not answer."""

    def get(self, *_: Any) -> Any:
        raise ConnectionError("Airflow is away")


@pytest.mark.parametrize(("code", "end"), [(65, GivenUp), (75, TryAgain)])
def test_an_end_is_kept_where_airflow_does_not_answer_just_then(
    task: ShardTask, code: int, end: type[TaskEnded]
) -> None:
    task.kept = Away()
    task.cluster.fate = lambda pod: pod.end(code)
    assert isinstance(task.run(), end)


@pytest.mark.protocol(12)
def test_keys_that_nobody_mends_have_an_end(task: ShardTask, refusing: type[Refusing]) -> None:
    endings = [task.run() for _ in range(MAX_BRIEF + 1)]
    assert [type(ended) for ended in endings] == [TryAgain] * MAX_BRIEF + [GivenUp]
    assert not task.cluster.created


@pytest.mark.parametrize("clock_s", [-600.0, 600.0])
def test_a_clock_that_differs_from_the_cluster_s_costs_no_draining_pod(
    task: ShardTask, clock_s: float
) -> None:
    def fate(pod: FakePod) -> None:
        pod.run(started=ago(100 - clock_s))
        pod.delete(at=ago(-30 - clock_s))

    task.cluster.fate, task.cluster.clock_s = fate, clock_s
    deferral = task.start()
    (pod,) = task.cluster.created
    task.cluster.on_look = lambda looks: pod.end(75) if looks == 3 else None
    event = task.watch(deferral)
    assert event["stop"] == "ended"
    with pytest.raises(TryAgain, match="drained"):
        task.go_on(event)


@pytest.mark.parametrize("fault", [0, 429, 500, 503])
def test_an_api_that_fails_for_a_minute_is_waited_for(task: ShardTask, fault: int) -> None:
    task.cluster.fail(fault, n=6)
    assert task.run() is None
    assert len(task.cluster.created) == 1


def test_a_lost_reply_is_no_second_pod(task: ShardTask) -> None:
    task.cluster.fail(LOST_REPLY, method="POST")
    assert task.run() is None
    assert len(task.cluster.created) == 1


@pytest.mark.protocol(11)
def test_an_api_that_stays_away_costs_the_shard_nothing_and_the_delay_grows(
    task: ShardTask,
) -> None:
    task.cluster.fail(500, n=1_000, method="POST")
    first, second = task.run(), task.run()
    assert isinstance(first, TryAgain)
    assert isinstance(second, TryAgain)
    assert "free, 0 of 3: control_plane" in str(first)
    assert second.delay_s > first.delay_s
    assert not task.attempts()
    task.cluster.faults.clear()
    assert task.run() is None


def test_an_api_that_is_away_when_a_pod_ended_is_asked_again_by_the_next_try(
    task: ShardTask,
) -> None:
    def fate(pod: FakePod) -> None:
        pod.run()
        pod.end(137, "OOMKilled")

    task.cluster.fate = fate
    task.cluster.fail(500, n=1_000, method="DELETE")
    assert "control_plane" in reason_of(task.run())
    task.cluster.faults.clear()
    task.cluster.fate = task.answer
    assert task.run() is None
    assert [r.pod_outcome for r in task.attempts() if r.pod_outcome] == [PodOutcome.OOM_KILLED]


# a task that starts anew


def test_a_task_that_starts_anew_goes_on_with_its_living_pod(task: ShardTask) -> None:
    task.cluster.fate = lambda pod: pod.run()
    task.start()
    task.ti.try_number += 1
    deferral = task.start()
    (pod,) = task.cluster.created
    task.answer(pod)
    task.resume(deferral)
    assert len(task.cluster.created) == 1


def test_a_task_that_starts_anew_judges_the_pod_that_ended_meanwhile(task: ShardTask) -> None:
    task.cluster.fate = lambda pod: pod.run()
    task.start()
    task.cluster.created[0].end(65)
    assert isinstance(task.run(), GivenUp)
    assert task.attempts()[0].pod_outcome is PodOutcome.WRONG_INPUT


@pytest.mark.protocol(21)
def test_a_cleared_shard_gets_a_new_pod_and_fresh_attempts(task: ShardTask) -> None:
    task.cluster.fate = lambda pod: pod.end(70)
    assert [type(task.run()) for _ in range(3)][-1] is GivenUp
    task.ti.max_tries += 1
    assert "charged, 1 of 3" in reason_of(task.run())
    task.cluster.fate = task.answer
    assert task.run() is None


def test_two_tasks_of_one_shard_that_start_at_once_share_a_pod(task: ShardTask) -> None:
    other = ShardTask(task.store, task.plan, task.cluster, Ti(), Kept())
    task.cluster.fate = lambda pod: pod.run()
    first, second = task.operator(), other.operator()
    pods = [first._open(task.context(first)), second._open(other.context(second))]
    sent = [
        operator._send(owner.context(operator), found)["metadata"]["name"]
        for operator, owner, found in zip((first, second), (task, other), pods, strict=True)
    ]
    assert sent[0] == sent[1]
    assert len(task.cluster.created) == 1
    first.on_kill()
    task.cluster.pods.clear()


def test_after_a_wave_was_cleared_nobody_takes_the_pod_of_another_shard(
    tmp_path: Path, task: ShardTask
) -> None:
    """Cleared, the wave maps over what is left: the same map index means another shard."""
    store, plan = gpu_job(tmp_path, shard=2, store=task.store)
    first = ShardTask(store, plan, task.cluster, number=0)
    task.cluster.fate = lambda pod: pod.run()
    first.start()
    (draining,) = task.cluster.created
    second = ShardTask(store, plan, task.cluster, number=1)
    task.cluster.fate = second.answer
    assert second.run() is None
    assert draining.name in task.cluster.pods
    assert not first.attempts()
    draining.vanish()


def test_a_shard_whose_map_index_changed_goes_on_with_its_own_pod(task: ShardTask) -> None:
    task.cluster.fate = lambda pod: pod.run()
    task.start()
    task.ti.map_index = 7
    deferral = task.start()
    (pod,) = task.cluster.created
    task.answer(pod)
    task.resume(deferral)


def test_two_deployments_in_one_namespace_leave_each_other_s_pods_alone(
    tmp_path: Path, task: ShardTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same job over the same corpus has the same id, wave and map index in both."""
    task.cluster.fate = lambda pod: pod.run()
    ours = task.start()
    (pod,) = task.cluster.created
    assert task.store.folder is not None
    shutil.copytree(task.store.folder, tmp_path / "there" / "root")
    there = make_store(tmp_path / "there")
    monkeypatch.setenv("SHARDLINE_ROOT", there.uri)
    theirs = ShardTask(there, task.plan, task.cluster)
    task.cluster.fate = theirs.answer
    assert theirs.run() is None
    assert list(task.cluster.pods) == [pod.name]
    monkeypatch.setenv("SHARDLINE_ROOT", task.store.uri)
    task.answer(pod)
    task.resume(ours)


def test_a_pod_of_the_same_name_that_another_task_sent_is_not_deleted(task: ShardTask) -> None:
    task.cluster.fate = lambda pod: pod.run()
    deferral = task.start()
    (mine,) = task.cluster.created
    task.cluster.on_look = lambda looks: mine.vanish() if looks == 2 else None
    event = task.watch(deferral)
    task.ti.try_number += 1
    other = task.start()
    later = task.cluster.created[-1]
    assert later.name == mine.name
    with pytest.raises(TryAgain, match="deleted"):
        task.go_on(event)
    assert later.name in task.cluster.pods
    task.answer(later)
    task.resume(other)


def test_a_task_told_to_stop_deletes_its_pod_and_lets_it_go(task: ShardTask) -> None:
    task.cluster.fate = lambda pod: pod.run()
    operator = task.operator()
    with pytest.raises(TaskDeferred):
        operator.execute(task.context(operator))
    operator.on_kill()
    assert not task.cluster.pods


def test_a_task_told_to_stop_before_it_waits_again_deletes_its_pod(task: ShardTask) -> None:
    task.cluster.fate = lambda pod: pod.run()
    task.start()
    (pod,) = task.cluster.created
    lost = {"name": pod.name, "attempt": task.attempt_of(pod), "stop": "lost", "facts": None}
    operator = task.operator()
    with pytest.raises(TaskDeferred):
        operator.trigger_reentry(task.context(operator), event=lost)
    operator.on_kill()
    assert not task.cluster.pods


def test_a_task_told_to_stop_before_it_has_sent_its_pod_sends_none(task: ShardTask) -> None:
    """Airflow's signal handler returns, and the task runs on until it is killed."""
    operator = task.operator()
    operator.on_kill()
    with pytest.raises(TryAgain, match="told to stop"):
        operator.execute(task.context(operator))
    assert not task.cluster.created


def test_a_task_told_to_stop_while_it_sends_its_pod_leaves_none(task: ShardTask) -> None:
    task.cluster.fate = lambda pod: pod.run()
    operator = task.operator()
    task.cluster.fail(LOST_REPLY, method="POST")
    task.cluster.on_look = lambda _: operator.on_kill()
    with pytest.raises(TryAgain, match="told to stop"):
        operator.execute(task.context(operator))
    assert len(task.cluster.created) == 1
    assert not task.cluster.pods


def test_the_reason_of_a_retry_is_what_airflow_shows(task: ShardTask) -> None:
    def fate(pod: FakePod) -> None:
        pod.run()
        pod.condition("DisruptionTarget", "True", "EvictionByEvictionAPI")
        pod.end(75)

    task.cluster.fate = fate
    ended = task.run()
    assert ended
    decision = TypedRetryPolicy().evaluate(ended, 1, 1_000)
    assert decision.action is RetryAction.RETRY
    assert "EvictionByEvictionAPI" in str(decision.reason)
    assert "spot-1" in str(decision.reason)


# logs


def test_the_end_of_the_worker_s_log_is_shown_from_the_store(
    task: ShardTask, caplog: pytest.LogCaptureFixture
) -> None:
    def fate(pod: FakePod) -> None:
        path = task.plan.layout.log(task.shard, task.attempt_of(pod))
        task.store.write(path, b"segment 1 committed\n")
        write_record(task, pod, exit_code=0, end=AttemptEnd.DONE)
        task.answer(pod)

    task.cluster.fate = fate
    with caplog.at_level("INFO"):
        task.run()
    assert "segment 1 committed" in caplog.text
    assert not [path for _, path in task.cluster.calls if path.endswith("/log")]


def test_the_log_of_a_worker_that_could_not_keep_it_comes_from_its_node(
    task: ShardTask, caplog: pytest.LogCaptureFixture
) -> None:
    def fate(pod: FakePod) -> None:
        pod.run()
        pod.end(1)

    task.cluster.fate, task.cluster.log = fate, "Traceback: no such module\n"
    with caplog.at_level("INFO"):
        task.run()
    assert "no such module" in caplog.text


def test_a_log_that_is_cut_off_hinders_nothing(task: ShardTask) -> None:
    def fate(pod: FakePod) -> None:
        pod.run()
        pod.end(137)

    task.cluster.fate = fate
    task.cluster.fail(500, n=9, path="/log")
    assert "charged, 1 of 3" in reason_of(task.run())


def test_a_job_that_was_answered_by_another_runner_needs_no_pod(task: ShardTask) -> None:
    answer_shard(task.store, task.plan, task.shard)
    assert task.run() is None
    assert not task.cluster.created
