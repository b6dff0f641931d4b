"""What the tasks of a replay call, without Airflow around them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardline.errors import WrongInput
from shardline.results.open_replay import open_replay
from shardline.results.settle import settle_shards
from shardline.results.wish import Wish
from shardline.store import Store
from shardline_airflow import stages
from shardline_airflow.infer_operator import say_done_before
from shardline_airflow.retries import GivenUp
from tests.results.answers import (
    NOW,
    answer_all,
    error,
    publish_unseen,
    put_attempt,
    result,
    small_job,
)

pytestmark = pytest.mark.protocol(19)

ROWS = [{"id": f"d{i}", "text": f"text {i}"} for i in range(3)]
RUN = "airflow:replay_dead_letters:manual"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARDLINE_ROOT", str(tmp_path / "root"))
    return tmp_path


def test_a_run_gets_the_same_replay_whenever_its_first_task_is_cleared(root: Path) -> None:
    store, plan = small_job(root, ROWS)
    answer_all(store, plan, error)
    publish_unseen(store, plan)
    replay = stages.open_replay({"job": "test-job"}, RUN)
    assert replay == f"{plan.job_id}-r1"
    stages.cut_replay(replay)
    finish(store, replay)
    assert stages.open_replay({"job": "test-job"}, RUN) == replay
    assert "0 dead letters" in stages.check_outcome(replay, {})


def finish(store: Store, replay: str) -> None:
    _, plan = stages.open_job(replay)
    answer_all(store, plan, result)
    publish_unseen(store, plan)


def test_where_nothing_is_left_the_tasks_find_the_current_job_done_and_stay_green(
    root: Path,
) -> None:
    store, plan = small_job(root, ROWS)
    answer_all(store, plan)
    publish_unseen(store, plan)
    assert stages.open_replay({"job": plan.job_id}, RUN) == plan.job_id
    stages.cut_replay(plan.job_id)
    assert stages.publish_results(plan.job_id, force=False)["is_new"] is False
    assert "nothing to do" in stages.check_outcome(plan.job_id, {})


def test_a_second_wish_is_refused_with_one_line(root: Path) -> None:
    store, plan = small_job(root, ROWS)
    answer_all(store, plan, error)
    publish_unseen(store, plan)
    stages.open_replay({"job": "test-job"}, RUN)
    with pytest.raises(GivenUp, match="another replay is open"):
        stages.open_replay({"job": "test-job", "max_tokens": 9}, f"{RUN}-2")


def test_a_replay_in_pods_of_a_job_that_ran_in_none_gets_the_image_of_today(root: Path) -> None:
    store, plan = small_job(root, ROWS)
    answer_all(store, plan, error)
    publish_unseen(store, plan)
    in_pods = Wish((), {"run_on": "gpu", "gpu.model": "stub", "gpu.engine": "stub"})
    with pytest.raises(WrongInput, match="SHARDLINE_WORKER_IMAGE"):
        open_replay(store, plan, in_pods, now=NOW)
    found = open_replay(store, plan, in_pods, now=NOW, worker_image="worker:1")
    assert found is not None
    assert found.worker_image == "worker:1"


def test_the_form_changes_the_runner_that_the_job_itself_has(root: Path) -> None:
    """A replay starts from the settings of its parent, not from those of the replay before it."""
    store, plan = small_job(root, ROWS)
    answer_all(store, plan, error)
    publish_unseen(store, plan)
    in_pods = Wish((), {"run_on": "gpu", "gpu.model": "stub", "gpu.engine": "stub"})
    first = open_replay(store, plan, in_pods, now=NOW, worker_image="worker:1")
    assert first is not None
    stages.cut_replay(first.job_id)
    answer_all(store, first, error)
    publish_unseen(store, first)
    params = {"job": first.job_id, "engine_args": {"latency_s": 0}}
    _, second = stages.open_job(stages.open_replay(params, RUN))
    assert second.replay is not None
    assert second.replay.changes == {"local.engine_args.latency_s": 0}


@pytest.mark.protocol(21)
def test_clearing_a_sealed_shard_of_a_replay_names_the_replay_of_its_parent(root: Path) -> None:
    store, plan = small_job(root, ROWS)
    answer_all(store, plan, error)
    publish_unseen(store, plan)
    replay = stages.open_replay({"job": "test-job"}, RUN)
    stages.cut_replay(replay)
    _, replayed = stages.open_job(replay)
    put_attempt(store, replayed, "shard-00000-000")
    settle_shards(store, replayed, generation=1)
    said = say_done_before(store, replayed, "shard-00000-000")
    assert f"`shardline replay {plan.job_id} --reason shard_dead`" in said
