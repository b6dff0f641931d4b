"""What the end of a pod means, and when nobody waits for one any longer."""

from __future__ import annotations

from typing import Any

import pytest

from shardline.reasons import Charge, PodOutcome
from shardline.runners.gpu.facts import PodFacts, read_facts
from shardline.runners.gpu.outcomes import Patience, Stop, classify, classify_refusal, look
from tests.runners.gpu.pods import at, ended, make_pod, pending, running

EVICTED = ("True", "EvictionByEvictionAPI", 10)
LIMITS = Patience()


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        (ended(0), PodOutcome.DONE),
        (ended(0, "OOMKilled"), PodOutcome.DONE),  # the engine was, and the worker went on
        (ended(65), PodOutcome.WRONG_INPUT),
        (ended(69), PodOutcome.STORE_UNREACHABLE),
        (ended(70), PodOutcome.ENGINE_FAILED),
        (ended(77), PodOutcome.STORE_REFUSED),
        (ended(70, "OOMKilled"), PodOutcome.OOM_KILLED),
        (ended(75), PodOutcome.DRAINED),
        (ended(75, DisruptionTarget=EVICTED, deleted=20), PodOutcome.DRAINED),
        (ended(76, deleted=20), PodOutcome.CANCELLED),
        (ended(137, "OOMKilled"), PodOutcome.OOM_KILLED),
        (ended(137, "OOMKilled", deleted=20), PodOutcome.OOM_KILLED),
        (ended(137, reason="DeadlineExceeded"), PodOutcome.DEADLINE),
        (ended(75, reason="DeadlineExceeded"), PodOutcome.DEADLINE),
        (ended(137, reason="Evicted"), PodOutcome.STORAGE_EXCEEDED),
        (
            ended(137, reason="Evicted", DisruptionTarget=("True", "TerminationByKubelet", 9)),
            PodOutcome.EVICTED,
        ),
        (ended(137, DisruptionTarget=EVICTED), PodOutcome.EVICTED),
        (ended(143, DisruptionTarget=("True", "PreemptionByScheduler", 9)), PodOutcome.EVICTED),
        (ended(137, DisruptionTarget=("True", "DeletionByTaintManager", 9)), PodOutcome.NODE_LOST),
        (ended(137, DisruptionTarget=("False", "EvictionByEvictionAPI", 9)), PodOutcome.UNKNOWN),
        (ended(137, "ContainerStatusUnknown"), PodOutcome.NODE_LOST),
        (ended(137, deleted=20), PodOutcome.DELETED),
        (ended(143), PodOutcome.EVICTED),
        (ended(137), PodOutcome.UNKNOWN),
        (ended(1), PodOutcome.UNKNOWN),
        (ended(128, "StartError"), PodOutcome.WONT_START),
        (
            read_facts(make_pod("Failed", reason="UnexpectedAdmissionError")),
            PodOutcome.NODE_REFUSED,
        ),
        (read_facts(make_pod("Failed", reason="OutOfnvidia.com/gpu")), PodOutcome.NODE_REFUSED),
        (
            read_facts(make_pod("Failed", DisruptionTarget=("True", "DeletionByPodGC", 9))),
            PodOutcome.NODE_LOST,
        ),
        # taken away while its image was pulled
        (ended(137, "ContainerStatusUnknown", deleted=20), PodOutcome.DELETED),
        (ended(137, "ContainerStatusUnknown", DisruptionTarget=EVICTED), PodOutcome.EVICTED),
        (ended(137, "ContainerStatusUnknown", reason="Evicted"), PodOutcome.STORAGE_EXCEEDED),
        (read_facts(make_pod("Succeeded")), PodOutcome.DONE),
    ],
)
def test_an_ended_pod_says_what_it_was(facts: PodFacts, outcome: PodOutcome) -> None:
    assert look(facts, at(30), None, LIMITS) is Stop.ENDED
    assert classify(facts, Stop.ENDED) is outcome


@pytest.mark.protocol(11)
@pytest.mark.parametrize(
    ("recorded", "outcome"),
    [
        (None, PodOutcome.DELETED),
        (0, PodOutcome.DONE),
        (75, PodOutcome.DRAINED),
        (65, PodOutcome.WRONG_INPUT),
        (70, PodOutcome.ENGINE_FAILED),
        (77, PodOutcome.STORE_REFUSED),
        (1, PodOutcome.UNKNOWN),
    ],
)
def test_of_a_pod_that_is_gone_the_worker_s_own_record_says_the_rest(
    recorded: int | None, outcome: PodOutcome
) -> None:
    assert look(None, at(30), None, LIMITS) is Stop.GONE
    assert classify(running(), Stop.GONE, recorded) is outcome
    assert classify(None, Stop.GONE, recorded) is outcome


def test_a_pod_gone_with_its_node_was_lost_and_not_deleted() -> None:
    seen = running(DisruptionTarget=("True", "DeletionByPodGC", 9))
    assert classify(seen, Stop.GONE) is PodOutcome.NODE_LOST


@pytest.mark.parametrize("now", [10, 79])
def test_a_pod_that_was_told_to_go_gets_its_grace_period_and_a_minute(now: float) -> None:
    assert look(running(deleted=20), at(now), None, LIMITS) is None
    assert look(running(deleted=20), at(81), None, LIMITS) is Stop.LOST
    assert classify(running(deleted=20), Stop.LOST) is PodOutcome.NODE_LOST


def test_a_silent_node_is_given_up_when_the_worker_writes_nothing_either() -> None:
    silent = running(Ready=("False", None, 100))
    assert look(silent, at(390), at(90), LIMITS) is None
    assert look(silent, at(410), at(90), LIMITS) is Stop.LOST
    assert look(silent, at(410), at(300), LIMITS) is None


def test_a_healthy_node_is_believed_for_an_hour_without_a_word_from_the_worker() -> None:
    healthy = running(Ready=("True", None, 6))
    assert look(healthy, at(3_000), None, LIMITS) is None
    assert look(healthy, at(3_700), None, LIMITS) is Stop.LOST
    assert look(healthy, at(3_700), at(200), LIMITS) is None
    assert look(healthy, at(3_900), at(200), LIMITS) is Stop.LOST


def test_a_pod_that_is_told_to_go_before_it_ran_is_waited_for() -> None:
    assert look(pending(deleted=20, PodScheduled=("True", None, 1)), at(60), None, LIMITS) is None


def test_a_pod_that_is_told_to_go_before_it_has_a_machine_was_deleted_and_lost_no_node() -> None:
    """Its finalizer keeps it there for ever."""
    pod = make_pod("Pending", deleted=20, PodScheduled=("False", "Unschedulable", 1))
    del pod["spec"]["nodeName"]
    assert look(read_facts(pod), at(21), None, LIMITS) is Stop.GONE
    assert classify(read_facts(pod), Stop.GONE) is PodOutcome.DELETED


def test_waiting_for_a_machine_has_an_end() -> None:
    waiting = pending(PodScheduled=("False", "Unschedulable", 1))
    assert look(waiting, at(3_590), None, LIMITS) is None
    assert look(waiting, at(3_602), None, LIMITS) is Stop.NO_ROOM
    assert look(pending(), at(3_601), None, LIMITS) is Stop.NO_ROOM  # no scheduler looked at it
    assert classify(waiting, Stop.NO_ROOM) is PodOutcome.UNSCHEDULABLE


def on_node(waiting: str) -> PodFacts:
    return pending(waiting, PodScheduled=("True", None, 10))


@pytest.mark.parametrize(
    ("waiting", "until", "stop"),
    [
        ("InvalidImageName", 0, Stop.NO_IMAGE),
        ("ErrImageNeverPull", 0, Stop.NO_IMAGE),
        ("ErrImagePull", 300, Stop.NO_IMAGE),
        ("ImagePullBackOff", 300, Stop.NO_IMAGE),
        ("CreateContainerConfigError", 300, Stop.WONT_START),
        ("RunContainerError", 300, Stop.WONT_START),
        ("ContainerCreating", 1_800, Stop.WONT_START),
    ],
)
def test_a_container_that_does_not_start_has_an_end(waiting: str, until: int, stop: Stop) -> None:
    if until:
        assert look(on_node(waiting), at(10 + until - 1), None, LIMITS) is None
    assert look(on_node(waiting), at(10 + until + 1), None, LIMITS) is stop


def test_what_never_ran_is_no_interruption() -> None:
    for stop in (Stop.NO_IMAGE, Stop.NO_ROOM, Stop.WONT_START):
        assert classify(on_node("x"), stop).charge is Charge.CHARGED


@pytest.mark.parametrize(
    ("status", "reason", "outcome"),
    [
        (422, "Invalid", PodOutcome.WRONG_MANIFEST),
        (400, "BadRequest", PodOutcome.WRONG_MANIFEST),
        (403, "Forbidden", PodOutcome.REFUSED),
        (401, "Unauthorized", PodOutcome.REFUSED),
        (404, "NotFound", PodOutcome.REFUSED),
        (0, "", PodOutcome.CONTROL_PLANE),
        (409, "Conflict", PodOutcome.CONTROL_PLANE),
        (429, "TooManyRequests", PodOutcome.CONTROL_PLANE),
        (500, "InternalError", PodOutcome.CONTROL_PLANE),
        (503, "ServiceUnavailable", PodOutcome.CONTROL_PLANE),
    ],
)
def test_an_api_that_made_no_pod_says_why(status: int, reason: str, outcome: PodOutcome) -> None:
    assert classify_refusal(status, reason) is outcome


def test_a_namespace_without_room_is_told_from_missing_rights() -> None:
    assert classify_refusal(403, "Forbidden", is_over_quota=True) is PodOutcome.OVER_QUOTA
    assert classify_refusal(403, "Forbidden") is PodOutcome.REFUSED
    assert PodOutcome.OVER_QUOTA.charge is Charge.FREE


def test_every_outcome_has_a_sentence_and_only_ends_cost_nothing() -> None:
    for outcome in PodOutcome:
        assert outcome.sentence.endswith(".")
    nothing = [o for o in PodOutcome if o.charge is Charge.NOTHING]
    assert nothing == [PodOutcome.DONE, PodOutcome.CANCELLED]


def test_only_the_worker_s_own_container_counts() -> None:
    pod: dict[str, Any] = make_pod("Running", state={"running": {"startedAt": None}})
    pod["status"]["containerStatuses"].insert(
        0, {"name": "sidecar", "state": {"terminated": {"exitCode": 3}}}
    )
    assert not read_facts(pod).has_ended
