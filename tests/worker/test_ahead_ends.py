"""Work-ahead and the end of an attempt: told to stop, cancelled, or failed beside it."""

import time
from pathlib import Path
from typing import Any

import pytest

from shardline.attempts import read_attempts
from shardline.engines.base import Answer, RequestRefused
from shardline.engines.stub import StubEngine
from shardline.errors import StoreRefused
from shardline.plan import Plan
from shardline.reasons import AttemptEnd, DeadLetterReason, ExitCode
from tests.worker.in_process import FaultyStore, attempt
from tests.worker.prepared import Prepared, read_results
from tests.worker.test_ahead import Shards, prepare_shards, rows

pytestmark = pytest.mark.timeout(60)


class StoppedEngine(StubEngine):
    """Once stopped it fails as a real engine does that is no longer there."""

    is_stopped = False

    async def generate(self, custom_id: str, prepared: Any) -> Answer:
        if self.is_stopped:
            raise AttributeError("the engine is gone")
        return await super().generate(custom_id, prepared)

    async def stop(self) -> None:
        StoppedEngine.is_stopped = True


def run_on(monkeypatch: pytest.MonkeyPatch, engine: type[StubEngine]) -> None:
    def maker(plan: Plan, slots: int | None = None) -> Any:
        return lambda: engine(plan.job_file.engine.engine_args)

    monkeypatch.setattr("shardline.worker.drive.engine_maker", maker)


def ahead_errors(shards: Shards, shard: str) -> list[str]:
    listed = shards.job.store.list(shards.job.plan.layout.segments(shard))
    lines = [line for found in listed for line in read_results(shards.job.store, found.path)]
    return [line.error.code for line in lines if line.error]


def test_an_attempt_that_fails_beside_it_takes_no_row_of_another_shard_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on(monkeypatch, StoppedEngine)
    monkeypatch.setattr(StoppedEngine, "is_stopped", False)
    shards = prepare_shards(tmp_path, [rows(0, 5), rows(1, 400)])
    first, second = shards.ids
    store, layout = shards.job.store, shards.job.plan.layout
    stray = b'{"id":"x","custom_id":"of nobody","error":{"code":"too_long","message":"x"}}\n'
    store.write(layout.segment(first, "somebody", 0), stray)

    def be_slow_at_the_end(n: int, path: str, moment: str) -> None:
        if moment == "before" and StoppedEngine.is_stopped and "/progress/" in path:
            time.sleep(0.6)

    late = FaultyStore(store.uri, be_slow_at_the_end)
    code = attempt(shards.job, tmp_path, shard=first, work_ahead_s=60, store=late)
    assert code is ExitCode.WRONG_INPUT
    assert shards.segments(second)
    assert ahead_errors(shards, second) == []


class CountingEngine(StubEngine):
    """Counts the requests that reach it."""

    requests = 0

    async def generate(self, custom_id: str, prepared: Any) -> Answer:
        CountingEngine.requests += 1
        return await super().generate(custom_id, prepared)


class RefusingEngine(StubEngine):
    """Finds out late that no request of the job can be done."""

    async def generate(self, custom_id: str, prepared: Any) -> Answer:
        await super().generate(custom_id, prepared)
        raise RequestRefused(DeadLetterReason.BAD_PARAMETER, "no such parameter")


def test_told_to_stop_it_feeds_no_more_rows_while_those_that_run_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on(monkeypatch, CountingEngine)
    monkeypatch.setattr(CountingEngine, "requests", 0)
    shards = prepare_shards(tmp_path, [rows(0), rows(1, 400)])
    first, second = shards.ids
    at_stop: list[int] = []

    def is_ahead(_: Prepared) -> bool:
        if shards.segments(second):
            at_stop.append(CountingEngine.requests)
        return bool(at_stop)

    attempt(shards.job, tmp_path, shard=first, work_ahead_s=60, stop_when=is_ahead)
    assert CountingEngine.requests <= at_stop[0] + 4


def test_told_to_stop_it_does_not_wait_for_the_rows_that_were_worth_waiting_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardline.worker.ahead._TICK_S", 0.01)
    shards = prepare_shards(tmp_path, [rows(0, 4, first=""), ["[stub:hang]"] * 8])
    first = next(iter(shards.ids))
    seen = 0

    def has_been_done_for_a_while(_: Prepared) -> bool:
        nonlocal seen
        seen += shards.job.store.exists(shards.job.plan.layout.results(first))
        return seen > 50

    code = attempt(
        shards.job,
        tmp_path,
        shard=first,
        work_ahead_s=0.05,
        stall_s=1_000,
        stop_when=has_been_done_for_a_while,
    )
    assert code is ExitCode.DONE


@pytest.mark.protocol(20)
def test_it_ends_when_the_job_is_cancelled(tmp_path: Path) -> None:
    shards = prepare_shards(tmp_path, [rows(0, 4, first=""), rows(1, 2_000)])
    first, second = shards.ids

    def cancel_once_ahead(_: Prepared) -> bool:
        is_done = shards.job.store.exists(shards.job.plan.layout.results(first))
        if is_done and shards.segments(second):
            shards.job.store.write(shards.job.plan.layout.cancel(1), b"{}")
        return False

    code = attempt(shards.job, tmp_path, shard=first, work_ahead_s=60, stop_when=cancel_once_ahead)
    assert code is ExitCode.DONE
    ((_, ahead),) = shards.segments(second).items()
    assert len(ahead) < 2_000


@pytest.mark.protocol(12)
def test_errors_of_a_wrong_job_reach_no_other_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on(monkeypatch, RefusingEngine)
    shards = prepare_shards(tmp_path, [rows(0, 3), rows(1, 40, first="")])
    first, second = shards.ids
    code = attempt(shards.job, tmp_path, shard=first, work_ahead_s=60)
    assert code is ExitCode.WRONG_INPUT
    assert shards.segments(second) == {}


@pytest.mark.protocol(7)
def test_what_fails_after_the_commit_does_not_change_how_the_attempt_ended(
    tmp_path: Path,
) -> None:
    shards = prepare_shards(tmp_path, [rows(0, 4, first=""), rows(1, 40)])
    first, second = shards.ids

    def refuse_the_other(n: int, path: str, moment: str) -> None:
        if f"/segments/{second}/" in path:
            raise StoreRefused(path)

    store = FaultyStore(shards.job.store.uri, refuse_the_other)
    code = attempt(shards.job, tmp_path, shard=first, work_ahead_s=1, store=store)
    assert code is ExitCode.DONE
    (record,) = read_attempts(shards.job.store, shards.job.plan.layout, first)
    assert record.end is AttemptEnd.DONE
