"""Which generation a start joins: that of a living run or wave, never an exhausted one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shardline.runners.generations import cancel_generation, open_generation
from shardline.runners.waves import plan_waves
from shardline.store import Store
from shardline_airflow.runs import DagRuns
from shardline_airflow.starts import Start, join_or_open, parse_start
from tests.factories import make_store
from tests.shardline_airflow.plan_factory import make_plan

FIRST = Start("batch_inference", "manual__2026-11-28T00:00:00+00:00", 2)
CLEARED = FIRST._replace(max_tries=3)
OTHER = Start("batch_inference", "manual__other", 2)
WAVES = plan_waves(2_000)


class KnownRuns(DagRuns):
    """Dag runs of an Airflow whose living runs are given."""

    living: tuple[str, ...] = ()

    def count_living(self, run_ids: Sequence[str]) -> int:
        return len(set(run_ids) & set(self.living))


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> type[KnownRuns]:
    monkeypatch.setattr("shardline_airflow.starts.DagRuns", KnownRuns)
    monkeypatch.setattr(KnownRuns, "living", ())
    return KnownRuns


def join(store: Store, folder: Path, start: Start) -> int:
    return join_or_open(store, make_plan(folder), WAVES, start, KnownRuns("infer_locally"))


def test_a_start_is_read_back_from_its_name() -> None:
    assert parse_start(str(FIRST)) == FIRST
    assert parse_start("cli-4711") is None


@pytest.mark.protocol(21)
def test_a_retry_stays_in_its_generation(tmp_path: Path, known: Any) -> None:
    store = make_store(tmp_path)
    assert [join(store, tmp_path, FIRST) for _ in range(3)] == [1, 1, 1]


@pytest.mark.protocol(21)
def test_clearing_after_all_waves_ended_opens_the_next(tmp_path: Path, known: Any) -> None:
    store = make_store(tmp_path)
    join(store, tmp_path, FIRST)
    known.living = (FIRST.run_id,)  # the cleared task itself runs in it
    assert join(store, tmp_path, CLEARED) == 2
    assert join(store, tmp_path, CLEARED) == 2


@pytest.mark.protocol(21)
def test_clearing_while_a_wave_lives_joins_it(tmp_path: Path, known: Any) -> None:
    store = make_store(tmp_path)
    join(store, tmp_path, FIRST)
    known.living = (WAVES[1].run_id(make_plan(tmp_path).job_id, 1),)
    assert join(store, tmp_path, CLEARED) == 1


@pytest.mark.protocol(21)
def test_a_second_run_of_the_job_joins_the_first_while_it_lives(tmp_path: Path, known: Any) -> None:
    store = make_store(tmp_path)
    join(store, tmp_path, FIRST)
    known.living = (FIRST.run_id,)
    assert join(store, tmp_path, OTHER) == 1
    known.living = ()
    assert join(store, tmp_path, OTHER) == 2


@pytest.mark.protocol(20, 21)
def test_a_cancelled_generation_is_not_joined(tmp_path: Path, known: Any) -> None:
    store = make_store(tmp_path)
    job_id = make_plan(tmp_path).job_id
    join(store, tmp_path, FIRST)
    cancel_generation(store, job_id, 1)
    known.living = (FIRST.run_id, WAVES[0].run_id(job_id, 1))
    assert join(store, tmp_path, CLEARED) == 2


def test_a_generation_of_the_command_line_is_not_waited_for(tmp_path: Path, known: Any) -> None:
    store = make_store(tmp_path)
    open_generation(store, make_plan(tmp_path).job_id, "cli-4711", lambda _: False)
    assert join(store, tmp_path, FIRST) == 2
