import pytest

from shardline.reasons import AttemptEnd, Charge, ExitCode, PodOutcome
from shardline.rows import Attempt
from shardline.runners.retry import MAX_BRIEF, MAX_FREE, Outcome, Verdict, decide, read_outcomes

CRASH = -9


def barren(code: int | None, n: int = 1) -> list[Outcome]:
    return [Outcome(code, made_progress=False)] * n


def fruitful(code: int | None, n: int = 1) -> list[Outcome]:
    return [Outcome(code, made_progress=True)] * n


def record(attempt: str, **fields: object) -> Attempt:
    return Attempt(attempt, "s", 1, "host", 1, "now", **fields)  # type: ignore[arg-type]


def test_done_is_done_whatever_came_before() -> None:
    assert decide([*barren(CRASH, 2), *fruitful(0)]).verdict is Verdict.DONE


@pytest.mark.protocol(11, 12)
def test_a_permanent_outcome_kills_the_shard_at_once() -> None:
    decision = decide([Outcome(ExitCode.WRONG_INPUT, False, "no such shard")])
    assert decision.verdict is Verdict.DEAD
    assert "no such shard" in decision.reason


def test_a_cancelled_worker_is_not_retried() -> None:
    assert decide(barren(ExitCode.CANCELLED)).verdict is Verdict.CANCELLED


@pytest.mark.protocol(11)
@pytest.mark.parametrize("code", [CRASH, 1, 137, ExitCode.ENGINE_FAILED])
def test_three_attempts_without_progress_kill_the_shard(code: int) -> None:
    assert decide(barren(code, 2)).verdict is Verdict.RETRY
    assert decide(barren(code, 2)).is_charged
    dead = decide(barren(code, 3))
    assert dead.verdict is Verdict.DEAD
    assert "3 attempts without progress" in dead.reason


@pytest.mark.protocol(11)
def test_attempts_without_progress_count_even_when_others_lie_between() -> None:
    outcomes = [*barren(CRASH, 2), *fruitful(CRASH, 5), *barren(CRASH)]
    assert decide(outcomes).verdict is Verdict.DEAD


@pytest.mark.protocol(11)
@pytest.mark.parametrize("code", [CRASH, 1, ExitCode.ENGINE_FAILED])
def test_an_attempt_with_progress_is_free(code: int) -> None:
    decision = decide(fruitful(code, 20))
    assert (decision.verdict, decision.is_charged, decision.delay_s) == (Verdict.RETRY, False, 0)


@pytest.mark.protocol(11)
@pytest.mark.parametrize("code", [ExitCode.DRAINED, ExitCode.STORE_UNREACHABLE, None])
def test_interruptions_are_free_with_growing_delays_under_a_high_ceiling(code: int | None) -> None:
    delays = [decide(barren(code, n)).delay_s for n in range(1, 10)]
    assert not decide(barren(code, 9)).is_charged
    assert delays == sorted(delays)
    assert delays[0] == 10
    assert delays[-1] == 600
    assert decide(barren(code, MAX_FREE)).verdict is Verdict.RETRY
    assert decide(barren(code, MAX_FREE + 1)).verdict is Verdict.DEAD


@pytest.mark.protocol(11, 12)
def test_a_store_that_refuses_is_asked_for_ten_minutes_and_charged_nothing() -> None:
    refused = [decide(barren(ExitCode.STORE_REFUSED, n)) for n in range(1, MAX_BRIEF + 2)]
    assert [d.verdict for d in refused] == [Verdict.RETRY] * MAX_BRIEF + [Verdict.DEAD]
    assert not any(d.is_charged for d in refused)
    assert sum(d.delay_s for d in refused) == 630
    assert "7 times without progress" in refused[-1].reason
    assert AttemptEnd.STORE_REFUSED.sentence in refused[-1].reason


@pytest.mark.protocol(11)
def test_keys_that_are_mended_meanwhile_start_the_count_again() -> None:
    outcomes = [*barren(ExitCode.STORE_REFUSED, MAX_BRIEF), *fruitful(ExitCode.DRAINED)]
    assert decide([*outcomes, *barren(ExitCode.STORE_REFUSED)]).verdict is Verdict.RETRY


def test_jitter_only_stretches_the_delay() -> None:
    assert decide(barren(None), jitter=1).delay_s == 15


@pytest.mark.protocol(11)
@pytest.mark.parametrize("code", [None, ExitCode.DRAINED, ExitCode.STORE_REFUSED])
def test_a_fleet_that_is_interrupted_at_once_does_not_come_back_at_once(code: int | None) -> None:
    assert [decide(fruitful(code), jitter).delay_s for jitter in (0.2, 0.9)] == [2, 9]


def test_the_reason_says_how_it_ended() -> None:
    assert "killed by signal 9" in decide(barren(CRASH)).reason
    assert "vanished" in decide(barren(None)).reason
    assert "crashed with exit code 3" in decide(barren(3)).reason


@pytest.mark.protocol(11)
def test_a_committed_segment_is_progress() -> None:
    outcomes = read_outcomes([record("a", exit_code=CRASH), record("b", exit_code=CRASH)], {"b"})
    assert [o.made_progress for o in outcomes] == [False, True]


@pytest.mark.protocol(11)
def test_a_conviction_is_progress() -> None:
    ended = record("a", exit_code=70, end=AttemptEnd.ENGINE_FAILED, convictions=[1, 2, 3])
    assert read_outcomes([ended], ())[0].made_progress


@pytest.mark.protocol(11)
def test_a_smaller_group_in_flight_is_progress_and_an_equal_one_is_not() -> None:
    group = list(range(16))
    attempts = [
        record("a", exit_code=CRASH),
        record("b", exit_code=CRASH, suspects=[group]),
        record("c", exit_code=CRASH, suspects=[group]),
        record("d", exit_code=CRASH, suspects=[[1], [2]]),
        record("e", exit_code=CRASH, suspects=[[2]]),
        record("f", exit_code=CRASH, suspects=[[2]]),
    ]
    assert [o.made_progress for o in read_outcomes(attempts, ())] == [
        False,
        True,
        False,
        True,
        True,  # alone for the second time: now it can be accused
        False,
    ]


def test_after_a_conviction_the_next_hunt_may_begin_with_a_large_group() -> None:
    attempts = [
        record("a", exit_code=CRASH, suspects=[[1]]),
        record("b", exit_code=CRASH, suspects=[[1], [2, 3, 4]], convictions=[1]),
        record("c", exit_code=CRASH, suspects=[[2, 3, 4]]),
    ]
    assert all(o.made_progress for o in read_outcomes(attempts, ()))


def watched(pod: PodOutcome, n: int = 1, progress: bool = False) -> list[Outcome]:
    return [Outcome(None, progress, pod=pod)] * n


@pytest.mark.protocol(11)
@pytest.mark.parametrize("pod", [o for o in PodOutcome if o.charge is Charge.FREE])
def test_a_pod_s_interruptions_are_free_under_the_ceiling(pod: PodOutcome) -> None:
    assert decide(watched(pod, MAX_FREE)).verdict is Verdict.RETRY
    assert not decide(watched(pod)).is_charged
    assert decide(watched(pod, MAX_FREE + 1)).verdict is Verdict.DEAD


@pytest.mark.protocol(11, 12)
def test_a_pod_whose_keys_are_refused_is_tried_for_ten_minutes() -> None:
    assert decide(watched(PodOutcome.STORE_REFUSED, MAX_BRIEF)).verdict is Verdict.RETRY
    assert decide(watched(PodOutcome.STORE_REFUSED, MAX_BRIEF + 1)).verdict is Verdict.DEAD


@pytest.mark.protocol(11)
@pytest.mark.parametrize("pod", [o for o in PodOutcome if o.charge is Charge.CHARGED])
def test_a_pod_s_real_faults_are_charged_and_the_third_is_the_last(pod: PodOutcome) -> None:
    assert decide(watched(pod, 2)).verdict is Verdict.RETRY
    assert decide(watched(pod, 2)).is_charged
    dead = decide(watched(pod, 3))
    assert dead.verdict is Verdict.DEAD
    assert pod is PodOutcome.UNKNOWN or pod.sentence in dead.reason


@pytest.mark.protocol(11, 12)
@pytest.mark.parametrize("pod", [PodOutcome.WRONG_INPUT, PodOutcome.WRONG_MANIFEST])
def test_a_pod_that_can_never_work_is_not_tried_again(pod: PodOutcome) -> None:
    assert decide(watched(pod)).verdict is Verdict.DEAD


def test_a_pod_s_outcome_says_more_than_the_exit_code() -> None:
    killed = Outcome(137, False, pod=PodOutcome.EVICTED)
    assert not decide([killed]).is_charged
    assert decide([Outcome(137, False)]).is_charged


@pytest.mark.protocol(11)
def test_a_shard_that_gets_on_is_never_given_up_for_being_interrupted_often() -> None:
    often = fruitful(ExitCode.DRAINED, 10 * MAX_FREE)
    assert decide(often).verdict is Verdict.RETRY
    assert decide([*barren(None, MAX_FREE), *often, *barren(None, 5)]).verdict is Verdict.RETRY


def test_a_pod_s_outcome_is_read_from_the_record() -> None:
    (outcome,) = read_outcomes([record("a", pod_outcome=PodOutcome.NODE_LOST)], ())
    assert outcome.pod is PodOutcome.NODE_LOST


def test_a_fleet_that_lost_its_machines_at_once_does_not_come_back_at_once() -> None:
    interrupted = fruitful(ExitCode.DRAINED)
    assert {decide(interrupted, jitter=j).delay_s for j in (0, 0.5, 1)} == {0, 5, 10}
    assert decide(fruitful(CRASH), jitter=1).delay_s == 0
