"""Waves from the first opened to the last ended: which are opened, which are kept back, and why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from shardline.errors import Cancelled, LimitExceeded, StoreUnavailable
from shardline.plan import Plan, timestamp
from shardline.reasons import ExitCode
from shardline.rows import Attempt
from shardline.runners.generations import cancel_generation
from shardline.runners.pool import PoolWatch
from shardline.runners.waves import (
    FIRST_WAVE,
    WAVE,
    Wave,
    WaveState,
    plan_waves,
    unfinished_waves,
)
from shardline.shards.manifest import read_manifest, read_shards
from shardline.status.read import StatusReader
from shardline.store import ObjectInfo, Store, open_store
from shardline_airflow.retries import GivenUp
from shardline_airflow.runs import DagRuns
from shardline_airflow.wave_operator import (
    LOCAL_SLOTS,
    Place,
    place_of,
    run_waves,
    wait_for_waves,
)
from shardline_airflow.wave_watch import Watch, done_numbers
from tests.factories import make_job, make_rows
from tests.results.answers import ATTEMPT, answer_shard, error, small_job
from tests.shardline_airflow.pod_tasks import Ti

Work = Callable[[int], str]


class Runs(DagRuns):
    """Dag runs that do a wave's work when they are first looked at; `work` ends one shard."""

    def __init__(self, work: Work) -> None:
        super().__init__("infer_locally")
        self.work = work
        self.opened: list[str] = []
        self._waiting: dict[str, Mapping[str, Any]] = {}
        self._states: dict[str, dict[int, str]] = {}
        self.asked: list[str] = []
        self.cleared: dict[str, Mapping[int, Work]] = {}
        self._looks_left: dict[str, int] = {}
        self.in_pool = 0

    def open(self, run_id: str, conf: Mapping[str, Any]) -> bool:
        if run_id in self.opened:
            return False
        self.opened.append(run_id)
        self._waiting[run_id] = conf
        return True

    def count_living(self, run_ids: Sequence[str]) -> int:
        living = len(set(run_ids) & (set(self._waiting) | set(self._looks_left)))
        for run_id in set(run_ids) & set(self._looks_left):
            self._looks_left[run_id] -= 1
            if not self._looks_left[run_id]:
                del self._looks_left[run_id]
                self._states[run_id] |= {n: work(n) for n, work in self.cleared[run_id].items()}
        for run_id in run_ids:
            if conf := self._waiting.pop(run_id, None):
                numbers = range(conf["lo"], conf["hi"])
                self._states[run_id] = {n: self.work(n) for n in numbers}
        return living

    def clear(self, run_id: str, work: Mapping[int, Work]) -> None:
        """These shards of an ended wave run again; the run lives for two looks at least."""
        self.cleared[run_id] = work
        self._looks_left[run_id] = 2

    def count_tasks(self, task_id: str, states: Sequence[str]) -> int:
        return self.in_pool if "deferred" in states else 0

    def is_paused(self) -> bool:
        return False

    def failed_values(self, ti: Any, run_id: str, *, mapped: str, source: str) -> list[Any]:
        self.asked.append(run_id)
        return [n for n, state in self._states.get(run_id, {}).items() if state == "failed"]


class Job:
    """A prepared job of one shard per row, and how its shards end."""

    def __init__(self, folder: Path, rows: int, max_dead: float = 1) -> None:
        self.store, self.plan = small_job(
            folder, make_rows(rows), shards__max_requests=1, limits__max_dead=max_dead
        )
        self.shards = read_shards(self.store, self.plan)

    def done(self, n: int) -> str:
        answer_shard(self.store, self.plan, self.shards[n].shard)
        return "success"

    def dead(self, n: int) -> str:
        now, shard = timestamp(datetime.now(UTC)), self.shards[n].shard
        record = Attempt(ATTEMPT, shard, 1, "host", 1, now, ended_at=now)
        record.exit_code = ExitCode.ENGINE_FAILED
        self.store.write(self.plan.layout.attempt(shard, ATTEMPT), msgspec.json.encode(record))
        return "failed"

    def watch(self, work: Work, generation: int = 1) -> tuple[Runs, Watch]:
        runs = Runs(work)
        rows_read = read_manifest(self.store, self.plan).rows_read
        return runs, Watch(
            self.store,
            self.plan,
            self.shards,
            generation,
            rows_read,
            None,
            runs,
            slots=500,
            pause=lambda _: None,
        )

    def run(self, work: Work) -> list[str]:
        runs, watch = self.watch(work)
        done = done_numbers(self.store, self.plan, self.shards)
        try:
            watch.run(unfinished_waves(plan_waves(len(self.shards)), done))
        finally:
            self.opened = [run_id.removeprefix(self.plan.job_id) for run_id in runs.opened]
        return self.opened


def forget(store: Store, plan: Plan, shard: str) -> None:
    store.delete(plan.layout.results(shard))


def test_every_wave_is_opened_once_and_ends_with_all_results(tmp_path: Path) -> None:
    job = Job(tmp_path, FIRST_WAVE + 3)
    assert job.run(job.done) == ["-w0-g1", "-w1-g1"]
    assert len(done_numbers(job.store, job.plan, job.shards)) == FIRST_WAVE + 3


@pytest.mark.protocol(21)
def test_a_wave_whose_shards_are_done_is_not_opened_again(tmp_path: Path) -> None:
    job = Job(tmp_path, FIRST_WAVE + 3)
    job.run(job.done)
    forget(job.store, job.plan, job.shards[FIRST_WAVE + 1].shard)
    assert job.run(job.done) == ["-w1-g1"]


def test_how_far_the_job_is_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = Job(tmp_path, 3)
    with caplog.at_level(logging.INFO):
        job.run(job.done)
    assert "0 of 3 shards done" in caplog.text
    assert "3 of 3 shards done, 3 of 3 rows" in caplog.text


@pytest.mark.protocol(14)
def test_a_first_wave_with_too_many_dead_keeps_the_second_back(tmp_path: Path) -> None:
    job = Job(tmp_path, FIRST_WAVE + 3, max_dead=0.1)
    with pytest.raises(LimitExceeded, match=r"2 of 11 rows are dead, more than limits\.max_dead"):
        job.run(lambda n: job.dead(n) if n < 2 else job.done(n))
    assert job.opened == ["-w0-g1"]


def test_dead_letters_of_done_shards_count_too(tmp_path: Path) -> None:
    job = Job(tmp_path, FIRST_WAVE + 3, max_dead=0)

    def with_error(n: int) -> str:
        answer_shard(job.store, job.plan, job.shards[n].shard, error)
        return "success"

    job.run(with_error)  # no worker told of them: settle_shards counts the files and decides
    assert len(job.opened) == 2


@pytest.mark.protocol(15)
def test_a_few_dead_shards_of_the_last_wave_are_left_to_settle(tmp_path: Path) -> None:
    job = Job(tmp_path, FIRST_WAVE + 3, max_dead=0)
    assert job.run(lambda n: job.dead(n) if n == FIRST_WAVE + 1 else job.done(n))


@pytest.mark.protocol(14)
def test_eight_shards_in_a_row_that_die_keep_the_rest_back(tmp_path: Path) -> None:
    job = Job(tmp_path, FIRST_WAVE + 3, max_dead=1)
    with pytest.raises(LimitExceeded, match="8 shards in a row died"):
        job.run(job.dead)
    assert job.opened == ["-w0-g1"]


@pytest.mark.protocol(14, 20)
def test_a_cancelled_generation_opens_no_further_wave(tmp_path: Path) -> None:
    job = Job(tmp_path, FIRST_WAVE + 3)

    def cancel(n: int) -> str:
        cancel_generation(job.store, job.plan.job_id, 1)
        return job.done(n)

    with pytest.raises(Cancelled, match="was cancelled"):
        job.run(cancel)
    assert job.opened == ["-w0-g1"]


def test_a_task_marked_as_failed_whose_shard_is_done_is_not_dead(tmp_path: Path) -> None:
    job = Job(tmp_path, FIRST_WAVE + 3, max_dead=0)

    def marked(n: int) -> str:
        job.done(n)
        return "failed"

    assert job.run(marked) == ["-w0-g1", "-w1-g1"]


@pytest.mark.protocol(15, 21)
def test_a_shard_that_is_cleared_in_a_wave_that_had_ended_is_waited_for(tmp_path: Path) -> None:
    """Whoever clears it makes its wave's run live again: settling would seal the shard meanwhile."""
    job = Job(tmp_path, FIRST_WAVE + 3, max_dead=1)
    runs, watch = job.watch(lambda n: job.dead(n) if n == 2 else job.done(n))
    first = f"{job.plan.job_id}-w0-g1"

    def clear_in_the_second_wave(_: float) -> None:
        if len(runs.opened) == 2 and first not in runs.cleared:
            runs.clear(first, {2: job.done})

    watch.pause = clear_in_the_second_wave
    watch.run(plan_waves(FIRST_WAVE + 3))
    assert len(done_numbers(job.store, job.plan, job.shards)) == FIRST_WAVE + 3


def test_dead_shards_keep_no_place_from_the_next_wave(tmp_path: Path) -> None:
    """A wave with many dead shards and one straggler would idle the fleet."""
    job = Job(tmp_path, 3, max_dead=1)
    runs, watch = job.watch(lambda n: job.dead(n) if n < 2 else "running")
    (wave,) = plan_waves(3)
    watch.slots = 1
    watch._open(wave)
    run_id = wave.run_id(job.plan.job_id, 1)
    assert watch._unfinished({wave: WaveState.LIVING}) == 3
    runs.count_living([run_id])
    watch._look(StatusReader(job.store, job.plan), {wave: WaveState.LIVING})
    assert watch._unfinished({wave: WaveState.LIVING}) == 1


def test_a_pool_that_is_larger_than_the_setting_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path, FIRST_WAVE + 3)
    runs, watch = job.watch(job.done)
    watch.slots, watch.pool, runs.in_pool = 2, PoolWatch("gpu", 2), 5
    watch.run(plan_waves(FIRST_WAVE + 3))
    assert caplog.text.count("5 pods at once, and the setting says 2: the pool gpu") == 1


@pytest.mark.protocol(15)
def test_nothing_is_settled_while_a_wave_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, FIRST_WAVE + 3)
    monkeypatch.setenv("SHARDLINE_ROOT", job.store.uri)
    runs, _ = job.watch(job.done)
    run_id = f"{job.plan.job_id}-w1-g2"
    runs._states[run_id] = {}
    runs.clear(run_id, {FIRST_WAVE: job.done})
    monkeypatch.setattr("shardline_airflow.wave_operator.DagRuns", lambda dag_id: runs)
    waited: list[float] = []
    wait_for_waves(job.plan.job_id, 2, pause=waited.append)
    assert len(waited) == 2
    wait_for_waves(job.plan.job_id, 2, pause=waited.append)
    assert len(waited) == 2


def test_a_wait_that_nothing_can_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDLINE_ROOT", str(tmp_path))
    with pytest.raises(GivenUp, match="not planned below"):
        wait_for_waves("gone-all-00000000", 1)


def test_a_wave_is_at_most_as_large_as_airflow_maps() -> None:
    assert max(len(w.numbers) for w in plan_waves(5_000)) == WAVE


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({}, Place("infer_locally", LOCAL_SLOTS)),
        ({"run_on": "gpu", "gpu": {"model": "m"}}, Place("infer_on_gpu", 40, "gpu")),
        (
            {"run_on": "gpu", "gpu": {"model": "m", "queue": "short"}},
            Place("infer_on_gpu_short", 4, "gpu_short"),
        ),
    ],
)
def test_a_job_s_waves_run_where_its_runner_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], place: Place
) -> None:
    monkeypatch.setenv("SHARDLINE_GPU_PODS", "40")
    monkeypatch.setenv("SHARDLINE_GPU_PODS_SHORT", "4")
    assert place_of(make_job(tmp_path, **fields)) == place


def test_waves_wait_for_the_shards_that_the_pool_still_has(tmp_path: Path) -> None:
    job = Job(tmp_path, FIRST_WAVE + 3)
    runs, watch = job.watch(job.done)
    watch.slots = 2
    watch.run(plan_waves(FIRST_WAVE + 3))
    assert len(runs.opened) == 2
    assert watch.done == set(range(FIRST_WAVE + 3))


def test_what_failed_in_a_wave_that_has_ended_is_asked_once(tmp_path: Path) -> None:
    job = Job(tmp_path, 3)
    runs, watch = job.watch(lambda n: "failed" if n == 1 else job.done(n))
    watch.slots = 1  # one wave after the other, and a look before each
    watch.run([Wave(0, 0, 1), Wave(1, 1, 2), Wave(2, 2, 3)])
    assert len(runs.opened) == 3
    assert runs.asked.count(runs.opened[0]) == 1


class Unsteady(Store):
    """The store of a folder that does not answer some listings of progress."""

    refusals: ClassVar[list[bool]] = []

    def __init__(self, uri: str) -> None:
        plain = open_store(uri)
        super().__init__(plain.uri, plain._objects, plain.folder)

    def _do_list(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        if prefix.endswith("progress") and self.refusals and self.refusals.pop(0):
            raise StoreUnavailable("away for a moment")
        return super()._do_list(prefix, start_after)


@pytest.mark.protocol(11, 21)
def test_an_outage_of_the_store_while_waves_run_costs_no_try_and_opens_no_wave_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path, FIRST_WAVE + 3)
    runs, _ = job.watch(job.done)
    monkeypatch.setenv("SHARDLINE_ROOT", job.store.uri)
    monkeypatch.setattr("shardline_airflow.buckets.open_store", Unsteady)
    monkeypatch.setattr("shardline.patience._LONGEST_PAUSE_S", 0.001)
    monkeypatch.setattr("shardline_airflow.wave_operator.DagRuns", lambda dag_id: runs)
    monkeypatch.setattr("shardline_airflow.wave_watch.POLL_S", 0.0)
    monkeypatch.setattr(Unsteady, "refusals", [False, True, True, False, True])
    assert run_waves(job.plan.job_id, {"ti": Ti()}) == 1
    assert "store: waiting for it" in caplog.text
    assert not Unsteady.refusals
    assert [run_id[-6:] for run_id in runs.opened] == ["-w0-g1", "-w1-g1"]
    assert len(done_numbers(job.store, job.plan, job.shards)) == FIRST_WAVE + 3
