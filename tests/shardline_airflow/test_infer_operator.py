"""What the end of an attempt means for its task."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from airflow.sdk.definitions.retry_policy import RetryAction

from shardline.attempts import read_attempts
from shardline.plan import Plan
from shardline.reasons import ExitCode
from shardline.results.settle import Settlement
from shardline.rows import Attempt
from shardline.runners.retry import MAX_BRIEF, Decision, Verdict
from shardline.runners.shard import ShardOutcome
from shardline.shards.manifest import read_shards
from shardline.store import Store
from shardline_airflow.infer_operator import (
    SHARD_RETRIES,
    InferShard,
    attempts_before,
    decide_since,
    end_task,
    say_done_before,
)
from shardline_airflow.retries import GivenUp, TryAgain, TypedRetryPolicy
from tests.factories import make_rows, make_store
from tests.results.answers import small_job
from tests.shardline_airflow.plan_factory import make_plan
from tests.shardline_airflow.pod_tasks import Refusing
from tests.waits import until

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
        ti = type("Ti", (), {"max_tries": max_tries, "try_number": 1})
        store = type("Kept", (), {"get": self.kept.get, "set": self.kept.__setitem__})
        return {"ti": ti, "task_state_store": store}


def test_a_done_shard_ends_its_task_well() -> None:
    end_task(SHARD, outcome(Verdict.DONE).decision)


def test_a_shard_to_retry_is_retried_after_its_delay() -> None:
    with pytest.raises(TryAgain) as raised:
        end_task(SHARD, outcome(Verdict.RETRY).decision)
    decision = TypedRetryPolicy().evaluate(raised.value, 1, 10)
    assert (decision.action, decision.retry_delay) == (RetryAction.RETRY, timedelta(seconds=7))
    assert "because" in str(decision.reason)


@pytest.mark.parametrize("verdict", [Verdict.DEAD, Verdict.CANCELLED])
def test_a_dead_or_cancelled_shard_is_not_retried(verdict: Verdict) -> None:
    with pytest.raises(GivenUp, match=f"{SHARD}: {verdict.value}, because") as raised:
        end_task(SHARD, outcome(verdict).decision)
    assert TypedRetryPolicy().evaluate(raised.value, 1, 10).action is RetryAction.FAIL


def test_an_error_that_is_not_ours_is_retried_as_the_task_says() -> None:
    assert TypedRetryPolicy().evaluate(OSError("disk"), 1, 10).action is RetryAction.DEFAULT


@pytest.mark.protocol(11, 21)
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


@pytest.mark.protocol(21)
def test_clearing_a_sealed_shard_says_that_only_a_replay_helps(tmp_path: Path) -> None:
    store, plan = make_store(tmp_path), make_plan(tmp_path)
    assert "nothing was run" in say_done_before(store, plan, SHARD)
    settlement = Settlement(plan.job_id, 1, 10, 1, [SHARD], [], {"shard_dead": 2}, 2, 0)
    store.write(plan.layout.settlement, msgspec.json.encode(settlement))
    command = f"`shardline replay {plan.job_id} --reason shard_dead`"
    assert command in say_done_before(store, plan, SHARD)
    assert "replay" not in say_done_before(store, plan, "shard-00001-000")


@pytest.mark.protocol(12)
def test_a_store_that_refuses_airflow_s_own_keys_is_asked_again_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, plan = small_job(tmp_path, make_rows(2))
    monkeypatch.setenv("SHARDLINE_ROOT", str(tmp_path / "root"))
    monkeypatch.setattr("shardline_airflow.infer_operator.name_map_index", lambda *_: None)
    monkeypatch.setattr("shardline_airflow.buckets.open_store", Refusing)
    monkeypatch.setattr(Refusing, "is_wrong", True)
    context = Tries().context(SHARD_RETRIES["retries"])
    context["params"] = {"job_id": plan.job_id, "generation": 1}
    task = InferShard(task_id="infer_shard", number=0)
    for _ in range(MAX_BRIEF):
        with pytest.raises(TryAgain, match="shard number 0: retry, free, 0 of 3: store_refused"):
            task.execute(context)
    with pytest.raises(GivenUp, match="asked with Airflow's keys"):
        task.execute(context)
    monkeypatch.setattr(Refusing, "is_wrong", False)
    task.execute(context)


def test_an_object_that_is_gone_is_no_refused_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, plan = small_job(tmp_path, make_rows(2))
    monkeypatch.setenv("SHARDLINE_ROOT", store.uri)
    store.delete(plan.layout.shard_table)
    context = Tries().context(SHARD_RETRIES["retries"])
    context["params"] = {"job_id": plan.job_id, "generation": 1}
    with pytest.raises(GivenUp, match=r"shards\.parquet: no such object"):
        InferShard(task_id="infer_shard", number=0).execute(context)


@pytest.mark.slow
def test_a_task_told_to_stop_drains_its_worker_and_the_next_try_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = {"latency_s": 1, "max_num_seqs": 20}
    rows = make_rows(20)
    store, plan = small_job(tmp_path, rows, local__engine_args=slow, shards__max_requests=20)
    monkeypatch.setenv("SHARDLINE_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("SHARDLINE_SEGMENT_S", "0.1")
    monkeypatch.setenv("SHARDLINE_MAX_NUM_SEQS", "1")  # twenty seconds, for the first try
    monkeypatch.setattr("shardline_airflow.infer_operator.name_map_index", lambda *_: None)
    (entry,) = read_shards(store, plan)
    context = Tries().context(SHARD_RETRIES["retries"])
    context["params"] = {"job_id": plan.job_id, "generation": 1}
    task = InferShard(task_id="infer_shard", number=0)
    with ThreadPoolExecutor() as threads:
        running = threads.submit(task.execute, context)
        until(
            "segment",
            lambda: list(store.list(plan.layout.segments(entry.shard))),
            while_it=lambda: not running.done(),
        )
        task.on_kill()
        with pytest.raises(TryAgain, match="free, 0 of 3"):
            running.result()
    monkeypatch.delenv("SHARDLINE_MAX_NUM_SEQS")
    InferShard(task_id="infer_shard", number=0).execute(context)
    first, second = read_attempts(store, plan.layout, entry.shard)
    assert first.exit_code == ExitCode.DRAINED
    assert second.resumed_rows > 0
    assert store.exists(plan.layout.results(entry.shard))
