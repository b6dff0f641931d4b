"""Shards and stores of the odd kind."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardline.engines.base import Answer
from shardline.engines.stub import StubEngine
from shardline.errors import StoreUnavailable
from shardline.plan import Plan
from shardline.reasons import ExitCode
from shardline.worker.stop import Stop
from tests.protocol.walks import run_attempt
from tests.worker.in_process import FaultyStore, attempt
from tests.worker.prepared import SHARD, prepare

pytestmark = pytest.mark.timeout(60)


def one_slot(**args: Any) -> dict[str, Any]:
    return {"model": "stub", "engine": "stub", "engine_args": {"max_num_seqs": 1, **args}}


def test_an_empty_shard_is_done(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, [])
    assert attempt(prepared, tmp_path, work_ahead_s=1) is ExitCode.DONE
    assert prepared.results() == []


def test_a_shard_of_refused_rows_alone_is_done(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, [f"[stub:error=too_long] {n}" for n in range(30)])
    assert attempt(prepared, tmp_path, work_ahead_s=0.1) is ExitCode.DONE
    assert set(prepared.reasons().values()) == {"too_long"}
    assert len(prepared.committed()) == 30


@pytest.mark.parametrize("poison", ["[stub:die]", "[stub:hang]"])
def test_one_slot_finds_a_poisoned_row_and_keeps_the_others(tmp_path: Path, poison: str) -> None:
    texts = [f"row {n}" for n in range(6)] + [f"{poison} x"]
    prepared = prepare(tmp_path, texts, local=one_slot())
    assert attempt(prepared, tmp_path, work_ahead_s=0.1) is ExitCode.DONE
    assert list(prepared.reasons()) == [6]
    assert sorted(prepared.committed()) == sorted(prepared.ids)


class SlowToPrepare(StubEngine):
    """Told to stop at its fifth answer, while it prepares rows until `is_enough` says so."""

    told: Stop
    is_enough: Callable[[], bool]
    was_enough = False
    stretches = ended = 0

    def prepare(self, requests: Any) -> Any:
        SlowToPrepare.stretches += 1
        until = time.monotonic() + 30
        while self.stretches == 2 and not self.was_enough and time.monotonic() < until:
            SlowToPrepare.was_enough = self.is_enough()
        return super().prepare(requests)

    async def generate(self, custom_id: str, prepared: Any) -> Answer:
        answer = await super().generate(custom_id, prepared)
        SlowToPrepare.ended += 1
        if self.ended == 5:
            self.told.on_signal()
            self.told.on_signal()
        return answer


@pytest.mark.protocol(12)
def test_told_to_stop_at_once_it_commits_what_ended_whatever_is_being_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def maker(plan: Plan, slots: int | None = None) -> Any:
        return lambda: SlowToPrepare(plan.job_file.engine.engine_args)

    prepared = prepare(tmp_path, [f"row {n}" for n in range(40)], local=one_slot(latency_s=0.01))
    monkeypatch.setattr("shardline.worker.drive.engine_maker", maker)
    monkeypatch.setattr(SlowToPrepare, "told", Stop(), raising=False)
    is_enough = staticmethod(lambda: bool(prepared.committed()))
    monkeypatch.setattr(SlowToPrepare, "is_enough", is_enough, raising=False)
    code = run_attempt(
        prepared.store,
        prepared.plan,
        SHARD,
        tmp_path,
        stop=SlowToPrepare.told,
        segment_s=60,
        segment_rows=1_000,
        window_factor=8,
    )
    assert code is ExitCode.DRAINED
    assert SlowToPrepare.was_enough


def test_the_store_down_at_each_write_ends_in_69_or_done_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    codes = []
    for at in range(12):
        folder = tmp_path / str(at)
        folder.mkdir()
        prepared = prepare(folder, [f"row {n}" for n in range(20)])

        def down(n: int, path: str, moment: str, at: int = at) -> None:
            if n >= at and moment == "before":
                raise StoreUnavailable(path)

        store = FaultyStore(prepared.store.uri, down)
        codes.append(attempt(prepared, folder, store=store, store_patience_s=0.01))
        assert attempt(prepared, folder) is ExitCode.DONE
        assert [line.custom_id for line in prepared.results()] == prepared.ids
        assert prepared.reasons() == {}
    assert set(codes) <= {ExitCode.DONE, ExitCode.STORE_UNREACHABLE}
