"""What the end of an attempt means for its task."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from airflow.sdk.definitions.retry_policy import RetryAction
from shardline.plan import Plan
from shardline.reasons import ExitCode
from shardline.results.settle import Settlement
from shardline.rows import Attempt
from shardline.runners.retry import Decision, Verdict
from shardline.runners.shard import ShardOutcome
from shardline.store import Store
from shardline_airflow.infer_operator import (
    SHARD_RETRIES,
    attempts_before,
    decide_since,
    end_task,
    say_done_before,
)
from shardline_airflow.retries import GivenUp, TryAgain, TypedRetryPolicy

from tests.factories import make_store
from tests.shardline_airflow.plan_factory import make_plan

SHARD = "shard-00000-000"


def outcome(verdict: Verdict, attempt: str = "a") -> ShardOutcome:
    return ShardOutcome(SHARD, attempt, 1, Decision(verdict, "because", delay_s=7), None)


def write_attempts(store: Store, plan: Plan, n: int, code: int = ExitCode.ENGINE_FAILED) -> None:
    for i in range(n):
        attempt = f"0190000{i}-0000-7000-8000-000000000000"
        record = Attempt(attempt, SHARD, 1, "host", 1, "2026-11-28T00:00:00.000+00:00")
        record.exit_code = code
        store.write(plan.layout.attempt(SHARD, attempt), msgspec.json.encode(record))


class Tries:
    """The part of a task's context that counting reads: a task cleared `cleared` times."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def context(self, max_tries: int) -> dict[str, Any]:
        ti = type("Ti", (), {"max_tries": max_tries})
        store = type("Kept", (), {"get": self.kept.get, "set": self.kept.__setitem__})
        return {"ti": ti, "task_state_store": store}


def test_a_done_shard_ends_its_task_well() -> None:
    end_task(outcome(Verdict.DONE), outcome(Verdict.DONE).decision)


def test_a_shard_to_retry_is_retried_after_its_delay() -> None:
    with pytest.raises(TryAgain) as raised:
        end_task(outcome(Verdict.RETRY), outcome(Verdict.RETRY).decision)
    decision = TypedRetryPolicy().evaluate(raised.value, 1, 10)
    assert (decision.action, decision.retry_delay) == (RetryAction.RETRY, timedelta(seconds=7))
    assert "because" in str(decision.reason)


@pytest.mark.parametrize("verdict", [Verdict.DEAD, Verdict.CANCELLED])
def test_a_dead_or_cancelled_shard_is_not_retried(verdict: Verdict) -> None:
    with pytest.raises(GivenUp, match=f"{SHARD}: {verdict.value}, because") as raised:
        end_task(outcome(verdict), outcome(verdict).decision)
    assert TypedRetryPolicy().evaluate(raised.value, 1, 10).action is RetryAction.FAIL


def test_an_error_that_is_not_ours_is_retried_as_the_task_says() -> None:
    assert TypedRetryPolicy().evaluate(OSError("disk"), 1, 10).action is RetryAction.DEFAULT


def test_clearing_a_dead_shard_gives_it_fresh_attempts(tmp_path: Path) -> None:
    store, plan, tries = make_store(tmp_path), make_plan(tmp_path), Tries()
    limit = SHARD_RETRIES["retries"]
    write_attempts(store, plan, 3)
    assert attempts_before(store, plan, SHARD, 1, tries.context(limit)) == 0
    cleared = tries.context(limit + 1)
    assert attempts_before(store, plan, SHARD, 1, cleared) == 3
    write_attempts(store, plan, 4)
    assert attempts_before(store, plan, SHARD, 1, cleared) == 3
    dead = outcome(Verdict.DEAD)
    assert decide_since(store, plan, dead, 1, before=0).verdict is Verdict.DEAD
    assert decide_since(store, plan, dead, 1, before=3).verdict is Verdict.RETRY


def test_clearing_a_sealed_shard_says_that_only_a_replay_helps(tmp_path: Path) -> None:
    store, plan = make_store(tmp_path), make_plan(tmp_path)
    assert "nothing was run" in say_done_before(store, plan, SHARD)
    settlement = Settlement(plan.job_id, 1, 10, 1, [SHARD], [], {"shard_dead": 2}, 2, 0)
    store.write(plan.layout.settlement, msgspec.json.encode(settlement))
    assert f"shardline replay {plan.job_id}" in say_done_before(store, plan, SHARD)
    assert "replay" not in say_done_before(store, plan, "shard-00001-000")
