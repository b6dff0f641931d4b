"""The numbers that the protocol names, and the small sentences of rules 2, 4, 12, 13, 20, 21, 23, 24."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import shardline.corpus.plan_job as planning
from shardline.errors import StoreUnavailable
from shardline.isolation import History, Isolation
from shardline.reasons import DeadLetterReason, ExitCode
from shardline.runners.generations import current_generation, open_generation
from shardline.runners.retry import MAX_CHARGED
from shardline.runners.waves import DEAD_IN_A_ROW, FIRST_WAVE, WAVE
from shardline.shards.manifest import read_shards
from shardline.store import open_store
from shardline.worker.__main__ import _parse
from shardline.worker_settings import WorkerSettings
from tests.factories import make_rows
from tests.protocol.walks import MortalStore, run_attempt
from tests.results.answers import requests_of, small_job
from tests.results.scripted_store import ScriptedStore
from tests.worker.prepared import SHARD, prepare

PROTOCOL = Path(__file__).parents[2] / "include/docs/protocol.md"


def rule(number: int) -> str:
    lines = PROTOCOL.read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"{number}. "))


@pytest.mark.protocol(12)
def test_the_exit_codes_are_those_of_the_protocol() -> None:
    listed = {int(code) for code in re.findall(r"(?:codes: |· )(\d+) ", rule(12))}
    assert listed == {int(code) for code in ExitCode}
    assert [code for code in ExitCode if code.is_permanent] == [ExitCode.WRONG_INPUT]


@pytest.mark.protocol(10, 11, 12, 14, 23)
def test_the_numbers_are_those_of_the_protocol() -> None:
    worker = WorkerSettings()
    assert (worker.segment_s, worker.segment_rows, worker.segment_bytes) == (60, 5_000, 32_000_000)
    assert worker.early_rows == 500
    assert worker.store_patience_s == 600
    assert worker.group_size == 16
    assert Isolation((), History()).sick_at == 3
    assert MAX_CHARGED == 3
    assert (FIRST_WAVE, DEAD_IN_A_ROW) == (8, 8)
    assert WAVE == planning.MAX_TASKS == 1_000


@pytest.mark.protocol(12)
def test_only_reasons_that_lie_in_the_job_end_a_shard_as_wrong_input() -> None:
    named = {r.value for r in DeadLetterReason if r.lies_in_job}
    assert named == set(re.findall(r"\((bad_\w+), (bad_\w+)\)", rule(12))[0])


@pytest.mark.protocol(2)
def test_another_model_gets_requests_of_the_same_names(tmp_path: Path) -> None:
    """So its results are compared row by row with the first one's."""
    ids = []
    for model in ("stub", "another"):
        local = {"model": model, "engine": "stub"}
        store, plan = small_job(tmp_path / model, make_rows(6), local=local)
        requests = [r for e in read_shards(store, plan) for r in requests_of(store, plan, e.shard)]
        assert {r.body["model"] for r in requests} == {"test-job"}
        ids.append([r.custom_id for r in requests])
    assert ids[0] == ids[1]


@pytest.mark.protocol(4)
def test_a_worker_makes_its_attempt_a_name_that_sorts_by_time() -> None:
    given = ["--job", "/root/jobs/j", "--shard", SHARD]
    names = [_parse(given).attempt for _ in range(20)]
    assert {UUID(name).version for name in names} == {7}
    assert names == sorted(names)
    assert len(set(names)) == 20


@pytest.mark.protocol(4, 21)
def test_a_record_names_the_generation_and_the_pod_that_it_was_started_with(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ["a"])
    run_attempt(prepared.store, prepared.plan, SHARD, tmp_path, generation=7, pod_uid="u-1")
    (record,) = prepared.attempts()
    assert (record.generation, record.pod_uid) == (7, "u-1")
    assert _parse(["--job", "j", "--shard", "s", "--generation", "7"]).generation == 7


# 20, 21


@pytest.mark.protocol(20)
def test_a_cancel_is_read_before_an_engine_is_started(tmp_path: Path) -> None:
    engine = {"model": "stub", "engine": "stub", "engine_args": {"start_fails": True}}
    prepared = prepare(tmp_path, ["a"], local=engine)
    prepared.store.put_once(prepared.plan.layout.cancel(1), b"x")
    code = run_attempt(prepared.store, prepared.plan, SHARD, tmp_path)
    assert code is ExitCode.CANCELLED
    assert run_attempt(prepared.store, prepared.plan, SHARD, tmp_path, generation=2) is (
        ExitCode.ENGINE_FAILED
    )


@pytest.mark.protocol(21)
@pytest.mark.parametrize("after", [False, True], ids=["put fails", "reply lost"])
def test_a_start_whose_put_failed_asks_again_and_opens_one_generation(
    tmp_path: Path, after: bool
) -> None:
    root = tmp_path / "root"
    with pytest.raises(StoreUnavailable):
        open_generation(ScriptedStore(root, 0, after=after), "job", "run-a", lambda _: False)
    store = open_store(str(root))
    assert open_generation(store, "job", "run-a", lambda _: False) == 1
    assert current_generation(store, "job") == 1


# 23: segments and the disk


def cut_by(tmp_path: Path, **settings: Any) -> int:
    """How many segments a shard of 40 rows ends in."""
    slow = {"latency_s": 0.005, "max_num_seqs": 2}
    engine = {"model": "stub", "engine": "stub", "engine_args": slow}
    prepared = prepare(tmp_path, [f"document {n}" for n in range(40)], local=engine)
    huge = {"segment_s": 600, "segment_rows": 10_000, "segment_bytes": 1_000_000_000}
    run_attempt(prepared.store, prepared.plan, SHARD, tmp_path, **{**huge, **settings})
    return prepared.attempts()[0].counts.segments


@pytest.mark.protocol(23)
@pytest.mark.parametrize("limit", ["segment_s", "segment_rows", "segment_bytes"])
def test_a_segment_is_cut_by_whichever_limit_binds_first(tmp_path: Path, limit: str) -> None:
    assert cut_by(tmp_path / "none") == 1
    assert cut_by(tmp_path / "cut", **{limit: 0.01 if limit == "segment_s" else 10}) > 1


@pytest.mark.protocol(23)
def test_a_folder_that_a_put_makes_is_on_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose folder is lost in a power cut is lost with it."""
    store = open_store(str(tmp_path / "root"))
    synced: list[str] = []
    fsync = os.fsync

    def see(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", see)
    store.put_once("jobs/a/plan.json", b"1")
    root = (tmp_path / "root").resolve()
    assert {str(root), str(root / "jobs"), str(root / "jobs/a")} <= set(synced)
    synced.clear()
    store.put_once("jobs/a/other.json", b"1")
    assert synced[1:] == [str(root / "jobs/a")]


# 24


@pytest.mark.protocol(24)
def test_a_worker_writes_only_where_a_pod_may(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ["a", "b", "x [stub:die]", "y [stub:error=too_long]"])
    store = MortalStore(prepared.store.uri)
    assert run_attempt(store, prepared.plan, SHARD, tmp_path) is ExitCode.DONE
    below = {path.removeprefix(prepared.plan.layout.prefix).split("/")[0] for path in store.written}
    allowed = re.search(r"may write only ([a-z, ]+)\.", rule(24))
    assert allowed
    assert below <= set(allowed[1].split(", "))
    assert {"attempts", "segments", "progress", "results"} <= below
