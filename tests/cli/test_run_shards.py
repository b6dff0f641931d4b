"""A job whose store refuses its workers or does not answer, or that others are running."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from shardline.attempts import new_attempt, read_attempts
from shardline.cli.run_job import run_job
from shardline.cli.run_shards import ShardLoop, Stopper
from shardline.cli.screen import Screen
from shardline.errors import JobNotReady, StoreRefused, StoreUnavailable, WrongInput
from shardline.plan import Plan, timestamp
from shardline.reasons import ExitCode
from shardline.report.state import JobState
from shardline.rows import Progress
from shardline.runners.generations import (
    cancel_generation,
    current_generation,
    open_generation,
)
from shardline.runners.retry import MAX_FREE
from shardline.runners.shard import close_record
from shardline.shards.manifest import read_shards
from shardline.store import ObjectInfo, Store, open_store
from tests.factories import make_rows
from tests.results.answers import small_job


@pytest.mark.protocol(12, 14)
def test_workers_that_the_store_refuses_end_the_job_before_anything_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, plan = small_job(tmp_path, make_rows(3), shards__max_requests=1, limits__max_dead=1)
    # every Python that is started from here ends as a worker does whose keys are wrong
    code = f"import os; os._exit({int(ExitCode.STORE_REFUSED)})"
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("shardline.runners.retry._DELAY_S", 0.0)
    with (
        Stopper() as stopper,
        pytest.raises(StoreRefused, match=r"the store refuses its workers; shard shard-\S+ died"),
    ):
        ShardLoop(store, plan, Screen(is_silent=True), stopper, 1).run()
    assert not list(store.list(plan.layout.results_prefix))


@pytest.mark.protocol(14)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("delay_s", [0.0, 600.0])
def test_no_shard_is_tried_again_or_waited_for_once_nothing_can_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delay_s: float
) -> None:
    store, plan = small_job(tmp_path, make_rows(2), shards__max_requests=1)
    first, second = (entry.shard for entry in read_shards(store, plan))
    code = f"import os, sys; os._exit(65 if {first!r} in sys.orig_argv else 69)"
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("shardline.runners.retry._DELAY_S", delay_s)
    with Stopper() as stopper, pytest.raises(WrongInput, match="it cannot be run as it is"):
        ShardLoop(store, plan, Screen(is_silent=True), stopper, 2).run()
    assert len(read_attempts(store, plan.layout, second)) < MAX_FREE


class Unsteady(Store):
    """The store of a folder that does not answer when it is asked how far the job is."""

    def __init__(self, uri: str, refusals: list[bool]) -> None:
        plain = open_store(uri)
        super().__init__(plain.uri, plain._objects, plain.folder)
        self.refusals = refusals

    def _do_list(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        if prefix.endswith("progress") and self.refusals and self.refusals.pop(0):
            raise ConnectionResetError("away for a moment")
        return super()._do_list(prefix, start_after)


@pytest.mark.protocol(11)
def test_an_outage_that_workers_sit_out_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, plan = small_job(tmp_path, make_rows(3), shards__max_requests=2)
    monkeypatch.setattr("shardline.patience._LONGEST_PAUSE_S", 0.001)
    store = Unsteady(plain.uri, [False, True, True, True])
    with Stopper() as stopper:
        ShardLoop(store, plan, Screen(is_silent=True), stopper, 1).run()
    assert not store.refusals
    assert len(list(store.list(plan.layout.results_prefix))) == 2


class AwayAtTheEnd(Store):
    """The store of a folder that does not answer for a while when the results are to be settled."""

    left = 3

    def _do_create(self, path: str, content: bytes | Path) -> bool:
        if path.endswith("settlement.json") and self.left:
            self.left -= 1
            raise ConnectionResetError("away for a moment")
        return super()._do_create(path, content)


@pytest.mark.protocol(11)
def test_an_outage_after_the_last_shard_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, plan = small_job(tmp_path, make_rows(3))
    monkeypatch.setattr("shardline.patience._LONGEST_PAUSE_S", 0.001)
    store = AwayAtTheEnd(plain.uri, plain._objects, plain.folder)
    assert run_job(store, plan, Screen(is_silent=True)).state is JobState.PUBLISHED
    assert not store.left


def test_a_run_that_is_told_to_stop_does_not_wait_for_a_store(tmp_path: Path) -> None:
    plain, plan = small_job(tmp_path, make_rows(3))
    store = Unsteady(plain.uri, [True] * 1_000)
    stopper = Stopper()
    stopper.stop()
    with pytest.raises(StoreUnavailable):
        ShardLoop(store, plan, Screen(is_silent=True), stopper, 1).run()
    assert len(store.refusals) == 999


def speak(store: Store, plan: Plan, shard: str, state: str, age_s: float) -> None:
    """Be a worker of the job's first generation, heard of so long ago."""
    at = timestamp(datetime.now(UTC) - timedelta(seconds=age_s))
    word = Progress(shard, "a", 1, at, state, 1, 0, 0, 0, 0, 0)
    store.write(plan.layout.progress(shard, "a"), msgspec.json.encode(word))


@pytest.mark.protocol(21)
@pytest.mark.parametrize("owner", ["airflow:batch_inference:manual__1:2", "cli elsewhere 7 1.00"])
def test_a_job_whose_workers_live_elsewhere_is_not_run_beside_them(
    tmp_path: Path, owner: str
) -> None:
    store, plan = small_job(tmp_path, make_rows(3), shards__max_requests=1)
    generation = open_generation(store, plan.job_id, owner, lambda _: False)
    shard = read_shards(store, plan)[1].shard

    def run() -> int:
        with Stopper() as stopper:
            return ShardLoop(store, plan, Screen(is_silent=True), stopper, 1).run()

    speak(store, plan, shard, "running", age_s=20)
    with pytest.raises(
        JobNotReady, match=rf"{owner} runs it; a worker on {shard} was heard of [2-9]\d s"
    ) as refusal:
        run()
    assert f"shardline cancel {plan.job_id} --root {store.uri}" in str(refusal.value)
    assert current_generation(store, plan.job_id) == generation
    cancel_generation(store, plan.job_id, generation)
    assert run() == generation + 1


@pytest.mark.protocol(21)
def test_a_job_whose_workers_elsewhere_start_for_long_is_not_run_beside_them(
    tmp_path: Path,
) -> None:
    """They say nothing while they load weights and compile."""
    store, plan = small_job(tmp_path, make_rows(2), shards__max_requests=1)
    open_generation(store, plan.job_id, "airflow:batch_inference:manual__1:2", lambda _: False)
    shard = read_shards(store, plan)[0].shard
    speak(store, plan, shard, "starting", age_s=1_500)

    def run() -> int:
        with Stopper() as stopper:
            return ShardLoop(store, plan, Screen(is_silent=True), stopper, 1).run()

    with pytest.raises(JobNotReady, match=r"was heard of 1[56]\d\d s"):
        run()
    # killed while it started, and somebody saw it
    close_record(store, plan, new_attempt("a", shard, 1), code=137)
    assert run() == 2


@pytest.mark.protocol(21)
@pytest.mark.parametrize(("state", "age_s"), [("ended", 1), ("running", 400), ("starting", 1_900)])
def test_a_job_whose_workers_elsewhere_are_gone_goes_on(
    tmp_path: Path, state: str, age_s: float
) -> None:
    store, plan = small_job(tmp_path, make_rows(2), shards__max_requests=1)
    open_generation(store, plan.job_id, "airflow:batch_inference:manual__1:2", lambda _: False)
    shard = read_shards(store, plan)[0].shard
    speak(store, plan, shard, state, age_s)
    with Stopper() as stopper:
        assert ShardLoop(store, plan, Screen(is_silent=True), stopper, 1).run() == 2
