import threading
from pathlib import Path

import pytest

from shardline.runners.generations import (
    cancel_generation,
    current_generation,
    is_cancelled,
    open_generation,
    read_generation,
)
from tests.factories import make_store

JOB = "job-all-00000000"


def living(*runs: str):  # type: ignore[no-untyped-def]
    return lambda run: run in runs


def test_the_first_start_opens_generation_one(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    assert current_generation(store, JOB) == 0
    assert open_generation(store, JOB, "run-a", living()) == 1
    assert current_generation(store, JOB) == 1
    assert read_generation(store, JOB, 1).run_id == "run-a"


@pytest.mark.protocol(21)
def test_a_start_joins_the_current_one_while_its_run_lives(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    open_generation(store, JOB, "run-a", living())
    assert open_generation(store, JOB, "run-b", living("run-a")) == 1


@pytest.mark.protocol(21)
def test_a_start_after_the_run_ended_opens_the_next(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    open_generation(store, JOB, "run-a", living())
    assert open_generation(store, JOB, "run-b", living()) == 2


def test_the_same_run_asking_again_gets_its_own(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    assert [open_generation(store, JOB, "run-a", living()) for _ in range(3)] == [1, 1, 1]


@pytest.mark.protocol(20, 21)
def test_a_cancelled_generation_is_not_joined(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    open_generation(store, JOB, "run-a", living())
    assert not is_cancelled(store, JOB, 1)
    cancel_generation(store, JOB, 1, "somebody")
    cancel_generation(store, JOB, 1, "somebody else")
    assert is_cancelled(store, JOB, 1)
    assert open_generation(store, JOB, "run-b", living("run-a")) == 2
    assert not is_cancelled(store, JOB, 2)


@pytest.mark.protocol(21)
def test_numbers_are_compared_as_numbers(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    for n in range(12):
        open_generation(store, JOB, f"run-{n}", living())
    assert current_generation(store, JOB) == 12


@pytest.mark.protocol(21)
def test_starts_at_the_same_moment_agree_on_one(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    runs = [f"run-{n}" for n in range(8)]
    barrier, found = threading.Barrier(8), []

    def start(run: str) -> None:
        barrier.wait()
        found.append(open_generation(store, JOB, run, living(*runs)))

    threads = [threading.Thread(target=start, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 8
