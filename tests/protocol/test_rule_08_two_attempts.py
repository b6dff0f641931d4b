"""PROTOCOL 7, 8, 15: attempts that die anywhere, others beside them, a settle that does not wait."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardline.layout import published
from shardline.plan import Plan
from shardline.reasons import ExitCode
from shardline.results.merge import merge_shards
from shardline.results.settle import Settlement, settle_shards
from shardline.results.verify import verify_job
from shardline.rows import Result
from shardline.segments import commit_results
from shardline.shards.manifest import read_shards
from shardline.status.read import read_status
from shardline.store import Put, Store, open_store
from tests.protocol.walks import MortalStore, at_once, run_attempt
from tests.results.answers import (
    ATTEMPT,
    NOW,
    answer_shard,
    error,
    lines_of,
    put_attempt,
    put_segment,
    requests_of,
    result,
    small_job,
)
from tests.worker.in_process import ProcessDied

pytestmark = [pytest.mark.protocol(8), pytest.mark.timeout(300)]

# 18 requests in two shards; every third document has a duplicate, one row is none
ROWS: list[Any] = [{"id": f"d{i}", "text": f"text {i % 18:02d}"} for i in range(24)]
ROWS += ["no json at all"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan]:
    """A prepared job whose second shard is done; the walks begin from copies of it."""
    folder = tmp_path_factory.mktemp("base")
    engine = {
        "model": "stub",
        "engine": "stub",
        "engine_args": {"latency_s": 0.005, "max_num_seqs": 2},
    }
    store, plan = small_job(folder, ROWS, shards__max_requests=10, local=engine)
    assert len(read_shards(store, plan)) == 2
    answer_shard(store, plan, read_shards(store, plan)[1].shard)
    assert store.folder is not None
    return store.folder, plan


def copied(base: tuple[Path, Plan], folder: Path) -> tuple[Store, Plan, str]:
    store = open_store(str(shutil.copytree(base[0], folder / "root")))
    return store, base[1], read_shards(store, base[1])[0].shard


def published_ids(store: Store, plan: Plan) -> Counter[str]:
    files = merge_shards(store, plan).files
    assert store.folder is not None
    table = store.folder / published(plan.job_file.table)
    return Counter(
        document
        for file in files
        for document in pq.ParquetFile(table / file.path).read(["document_id"])[0].to_pylist()
    )


def check_whole(store: Store, plan: Plan, settlement: Settlement) -> None:
    """Nothing lost, nothing doubled: every document is published once, or counted as dead once."""
    ids = published_ids(store, plan)
    assert set(ids.values()) <= {1}
    assert len(ids) + settlement.dead_documents + settlement.not_run_documents == 24
    verification = verify_job(store, plan)
    assert verification.holds, verification.differences
    assert verification.law.rejected == 1


operations = st.integers(0, 40)
moments = st.sampled_from(["before", "after"])
deaths = st.tuples(operations, moments)


@pytest.mark.slow
@pytest.mark.protocol(7, 8, 9)
@given(first=deaths, second=deaths, third=st.none() | deaths)
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_an_attempt_dies_anywhere_and_two_others_run_at_once_until_one_ends(
    first: tuple[int, str],
    second: tuple[int, str],
    third: tuple[int, str] | None,
    base: tuple[Path, Plan],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("walk")
    store, plan, shard = copied(base, folder)
    at_once(lambda: run_attempt(MortalStore(store.uri, *first), plan, shard, folder))
    beside = [MortalStore(store.uri, *death) for death in (second, third or (None, "before"))]
    at_once(*(lambda s=s: run_attempt(s, plan, shard, folder) for s in beside))  # type: ignore[misc]
    assert run_attempt(store, plan, shard, folder) is ExitCode.DONE
    settlement = settle_shards(store, plan, generation=1)
    assert settlement.dead_letters == {}
    check_whole(store, plan, settlement)
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.protocol(8, 15)
@given(first=deaths, second=deaths, settle_death=st.none() | deaths)
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_a_settle_races_a_worker_that_is_late_and_both_may_die(
    first: tuple[int, str],
    second: tuple[int, str],
    settle_death: tuple[int, str] | None,
    base: tuple[Path, Plan],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("walk")
    store, plan, shard = copied(base, folder)
    put_attempt(store, plan, shard)  # it had an attempt, or settle may not seal it
    at_once(lambda: run_attempt(MortalStore(store.uri, *first), plan, shard, folder))
    settling = MortalStore(store.uri, *(settle_death or (None, "before")))
    at_once(
        lambda: run_attempt(MortalStore(store.uri, *second), plan, shard, folder),
        lambda: settle_shards(settling, plan, generation=1),
        lambda: settle_shards(open_store(store.uri), plan, generation=1),
    )
    settlement = settle_shards(store, plan, generation=1)
    assert set(settlement.dead_letters) <= {"shard_dead"}
    check_whole(store, plan, settlement)
    before = store.read(plan.layout.results(shard))
    assert run_attempt(store, plan, shard, folder) is ExitCode.DONE
    assert store.read(plan.layout.results(shard)) == before
    shutil.rmtree(folder)


def test_an_attempt_that_dies_at_any_operation_leaves_what_the_next_one_finishes(
    base: tuple[Path, Plan], tmp_path: Path
) -> None:
    """Few of them, so that every check has the walk; the slow ones above take any."""
    for number, moment in [(2, "after"), (8, "before"), (10, "after"), (14, "before")]:
        folder = tmp_path / str(number)
        store, plan, shard = copied(base, folder)
        with pytest.raises(ProcessDied):
            run_attempt(MortalStore(store.uri, number, moment), plan, shard, folder)
        assert run_attempt(store, plan, shard, folder) is ExitCode.DONE
        check_whole(store, plan, settle_shards(store, plan, generation=1))


def answers(results: list[Result]) -> list[str | None]:
    return [line.error.code if line.error else None for line in results]


def read_results(store: Store, plan: Plan, shard: str) -> list[Result]:
    lines = store.read(plan.layout.results(shard)).splitlines()
    return [msgspec.json.decode(line, type=Result) for line in lines]


def test_a_result_of_any_attempt_beats_the_error_of_an_earlier_one(
    base: tuple[Path, Plan], tmp_path: Path
) -> None:
    store, plan, shard = copied(base, tmp_path)
    requests = requests_of(store, plan, shard)
    put_segment(store, plan, shard, [error(r) for r in requests], "019a-1")
    put_segment(store, plan, shard, [result(r) for r in requests[:4]], "019a-2")
    assert commit_results(store, plan.layout, shard) is Put.CREATED
    found = answers(read_results(store, plan, shard))
    assert found == [None] * 4 + ["engine_error"] * (len(requests) - 4)


def test_of_equal_ends_the_smallest_segment_name_wins_whenever_it_was_written(
    base: tuple[Path, Plan], tmp_path: Path
) -> None:
    store, plan, shard = copied(base, tmp_path)
    requests = requests_of(store, plan, shard)
    for attempt, n in [("019a-2", 0), ("019a-1", 10), ("019a-1", 9)]:
        said = [result(r, f"{attempt} {n}") for r in requests]
        put_segment(store, plan, shard, said, attempt, n)
    commit_results(store, plan.layout, shard)
    lines = read_results(store, plan, shard)
    said = {
        line.response.body["choices"][0]["message"]["content"] for line in lines if line.response
    }
    assert said == {"019a-1 9"}


def test_a_segment_that_lands_after_the_last_look_cannot_change_the_shard_that_is_done(
    base: tuple[Path, Plan], tmp_path: Path
) -> None:
    store, plan, shard = copied(base, tmp_path)
    requests = requests_of(store, plan, shard)
    put_segment(store, plan, shard, [error(r) for r in requests])

    def slip_in(number: int, name: str, path: str) -> None:
        if path == plan.layout.results(shard):
            put_segment(store, plan, shard, [result(r) for r in requests], "019a-9")

    assert commit_results(MortalStore(store.uri, on=slip_in), plan.layout, shard) is Put.CREATED
    first = store.read(plan.layout.results(shard))
    assert commit_results(store, plan.layout, shard) is Put.TAKEN
    assert store.read(plan.layout.results(shard)) == first
    check_whole(store, plan, settle_shards(store, plan, generation=1))


def test_a_commit_whose_reply_was_lost_is_ours_when_it_is_made_again(
    base: tuple[Path, Plan], tmp_path: Path
) -> None:
    store, plan, shard = copied(base, tmp_path)

    def lose_reply(number: int, name: str, path: str) -> None:
        if name == "create" and path == plan.layout.results(shard) and not lost:
            lost.append(path)
            store.put_once(path, lines_of(ends))
            raise ConnectionResetError("the reply was lost")

    lost: list[str] = []
    ends = [result(r) for r in requests_of(store, plan, shard)]
    put_segment(store, plan, shard, ends, ATTEMPT)
    losing = MortalStore(store.uri, on=lose_reply)
    assert run_attempt(losing, plan, shard, tmp_path) is ExitCode.DONE
    assert lost
    assert answers(read_results(store, plan, shard)) == [None] * len(ends)


@pytest.mark.protocol(7)
def test_the_copy_of_the_dead_letters_counts_for_nothing(
    base: tuple[Path, Plan], tmp_path: Path
) -> None:
    store, plan, shard = copied(base, tmp_path)
    answer_shard(store, plan, shard, lambda r: error(r, "too_long"))
    settlement = settle_shards(store, plan, generation=1)
    store.write(plan.layout.dead_letters(shard), b"scribbled over\n" * 99)
    store.write(plan.layout.dead_letters("shard-00009-000"), b"of no shard\n")
    check_whole(store, plan, settlement)


@pytest.mark.protocol(7)
def test_a_shard_whose_rows_are_all_in_segments_is_not_done_before_its_results_are_put(
    base: tuple[Path, Plan], tmp_path: Path
) -> None:
    store, plan, shard = copied(base, tmp_path)
    requests = requests_of(store, plan, shard)
    put_attempt(store, plan, shard)
    put_segment(store, plan, shard, [result(r) for r in requests])
    assert read_status(store, plan, NOW).shards_done == 1
    settlement = settle_shards(store, plan, generation=1)
    assert settlement.dead_letters == {}
    assert store.exists(plan.layout.results(shard))
