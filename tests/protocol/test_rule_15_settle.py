"""PROTOCOL 15, 20, 22: what may be settled when, after a cancel too, and what stays red."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from shardline.errors import Cancelled, StoreUnavailable
from shardline.plan import Plan
from shardline.reasons import ExitCode
from shardline.results.merge import merge_shards
from shardline.results.settle import settle_shards
from shardline.runners.generations import cancel_generation
from shardline.shards.manifest import read_shards
from shardline.store import Store, open_store
from shardline_airflow.retries import GivenUp
from shardline_airflow.stages import check_wave, unfinished_shards
from tests.protocol.walks import run_attempt
from tests.results.answers import answer_all, answer_shard, error, put_attempt, small_job
from tests.results.scripted_store import ScriptedStore

pytestmark = pytest.mark.protocol(15)

ROWS: list[Any] = [{"id": f"d{i}", "text": f"text {i:02d}"} for i in range(12)]


def shards_of(store: Store, plan: Plan) -> list[str]:
    return [entry.shard for entry in read_shards(store, plan)]


def two_dead(folder: Path, **limits: Any) -> tuple[Store, Plan]:
    """The last shard is done; all others had one attempt, and have nothing to show for it."""
    store, plan = small_job(folder, ROWS, limits={"max_rejected": 1, "max_dead": 1, **limits})
    *dead, last = shards_of(store, plan)
    assert len(dead) == 2
    answer_shard(store, plan, last)
    for shard in dead:
        put_attempt(store, plan, shard)
    return store, plan


def test_a_settle_that_dies_between_two_seals_is_settled_alike_by_the_next(tmp_path: Path) -> None:
    store, plan = two_dead(tmp_path)
    assert store.folder is not None
    other = tmp_path / "other"
    shutil.copytree(store.folder, other)
    whole = settle_shards(open_store(str(other)), plan, generation=1)
    scripted = ScriptedStore(store.folder, fail_at=1)
    with pytest.raises(StoreUnavailable):
        settle_shards(scripted, plan, generation=1)
    assert store.exists(plan.layout.results(shards_of(store, plan)[0]))
    assert not store.exists(plan.layout.results(shards_of(store, plan)[1]))
    assert settle_shards(store, plan, generation=1) == whole
    assert whole.dead_shards == shards_of(store, plan)[:2]


def test_what_is_sealed_stays_sealed_whoever_runs_it_again(tmp_path: Path) -> None:
    store, plan = two_dead(tmp_path)
    settle_shards(store, plan, generation=1)
    first = shards_of(store, plan)[0]
    sealed = store.read(plan.layout.results(first))
    for generation in (1, 2):
        code = run_attempt(store, plan, first, tmp_path, generation=generation)
        assert code is ExitCode.DONE
    assert store.read(plan.layout.results(first)) == sealed


def test_not_run_is_not_counted_in_max_dead_and_a_dead_shard_beside_it_is(tmp_path: Path) -> None:
    limits = {"max_rejected": 1, "max_dead": 4 / 12, "partial": True}
    store, plan = small_job(tmp_path, ROWS, limits=limits)
    first, second, _never = shards_of(store, plan)
    answer_shard(store, plan, first)
    put_attempt(store, plan, second)
    settlement = settle_shards(store, plan, generation=1)
    assert (settlement.dead_documents, settlement.not_run_documents) == (4, 4)
    assert set(merge_shards(store, plan).dead_letters) == {"not_run", "shard_dead"}


# 20: cancelled


@pytest.mark.protocol(20)
def test_a_cancel_that_comes_after_the_waves_seals_nothing(tmp_path: Path) -> None:
    store, plan = two_dead(tmp_path)
    cancel_generation(store, plan.job_id, 1)
    with pytest.raises(Cancelled):
        settle_shards(store, plan, generation=1)
    assert not store.exists(plan.layout.results(shards_of(store, plan)[0]))
    assert settle_shards(store, plan, generation=2).dead_shards == shards_of(store, plan)[:2]


@pytest.mark.protocol(20)
def test_a_cancel_that_comes_when_every_shard_is_done_does_not_block_the_job_for_ever(
    tmp_path: Path,
) -> None:
    """Resume has nothing to run then and opens no generation: it settles in the cancelled one."""
    store, plan = small_job(tmp_path, ROWS)
    answer_all(store, plan)
    cancel_generation(store, plan.job_id, 1)
    assert settle_shards(store, plan, generation=1).dead_documents == 0


@pytest.fixture
def at_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARDLINE_ROOT", str(tmp_path / "root"))
    return tmp_path


@pytest.mark.protocol(20)
def test_the_first_task_of_a_wave_reads_the_cancel_of_its_own_generation(at_root: Path) -> None:
    store, plan = two_dead(at_root)
    cancel_generation(store, plan.job_id, 1)
    with pytest.raises(GivenUp, match="generation 1 was cancelled"):
        unfinished_shards(plan.job_id, 0, 3, 1)
    assert unfinished_shards(plan.job_id, 0, 3, 2) == [0, 1]


# 22: red and green


@pytest.mark.protocol(22)
def test_a_wave_with_a_dead_shard_is_red_until_the_shard_is_sealed(at_root: Path) -> None:
    store, plan = two_dead(at_root)
    with pytest.raises(GivenUp, match="2 of 3 shards have no results"):
        check_wave(plan.job_id, 0, 3)
    settle_shards(store, plan, generation=1)
    check_wave(plan.job_id, 0, 3)


@pytest.mark.protocol(22)
def test_a_wave_whose_rows_are_all_dead_letters_is_green(at_root: Path) -> None:
    store, plan = small_job(at_root, ROWS)
    answer_all(store, plan, error)
    check_wave(plan.job_id, 0, 3)
