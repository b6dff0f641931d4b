"""Settling: what is sealed, what is refused, and that a refusal changes nothing."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from shardline.errors import Cancelled, JobNotReady, LimitExceeded, StoreUnavailable
from shardline.plan import Plan
from shardline.reasons import AttemptEnd, PodOutcome
from shardline.results.merge import merge_shards
from shardline.results.settle import read_settlement, settle_shards
from shardline.segments import commit_results
from shardline.shards.manifest import read_shards
from shardline.store import Put, Store, open_store
from tests.results.answers import (
    ATTEMPT,
    answer_shard,
    error,
    lines_of,
    put_attempt,
    put_segment,
    requests_of,
    result,
    small_job,
)
from tests.results.scripted_store import ScriptedStore, snapshot

# 12 requests in three or more shards; d12..d17 repeat d0..d5
ROWS = [{"id": f"d{i}", "text": f"text {i % 12:02d}"} for i in range(18)]


def shards_of(store: Store, plan: Plan) -> list[str]:
    return [entry.shard for entry in read_shards(store, plan)]


def half_done(tmp_path: Path, store: Store | None = None, **overrides: Any) -> tuple[Store, Plan]:
    """The first shard was interrupted after two of its requests, the others are done."""
    store, plan = small_job(tmp_path, ROWS, store=store, **overrides)
    first, *rest = shards_of(store, plan)
    for shard in rest:
        answer_shard(store, plan, shard)
    put_attempt(store, plan, first, message="the pod was evicted")
    put_segment(store, plan, first, [result(r) for r in requests_of(store, plan, first)[:2]])
    return store, plan


def read_results(store: Store, plan: Plan, shard: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in store.read(plan.layout.results(shard)).splitlines()]


def test_a_job_whose_shards_are_done_is_settled_as_it_is(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    for shard in shards_of(store, plan):
        answer_shard(store, plan, shard)
    settlement = settle_shards(store, plan, generation=1)
    assert settlement.dead_shards == settlement.not_run_shards == []
    assert settlement.dead_letters == {}
    assert settlement.dead_share == 0
    assert settle_shards(store, plan, generation=2) == settlement == read_settlement(store, plan)


@pytest.mark.protocol(15)
def test_a_dead_shard_keeps_what_its_segments_hold_and_says_why_the_rest_is_missing(
    tmp_path: Path,
) -> None:
    store, plan = half_done(tmp_path)
    first = shards_of(store, plan)[0]
    settlement = settle_shards(store, plan, generation=1)
    lines = read_results(store, plan, first)
    requests = requests_of(store, plan, first)
    assert [line["custom_id"] for line in lines] == [r.custom_id for r in requests]
    assert all(line["response"] for line in lines[:2])
    assert {line["error"]["code"] for line in lines[2:]} == {"shard_dead"}
    cause = f"attempt {ATTEMPT} was interrupted: the pod was evicted"
    assert {line["error"]["message"] for line in lines[2:]} == {cause}
    assert settlement.dead_shards == [first]
    assert settlement.dead_letters == {"shard_dead": len(requests) - 2}


@pytest.mark.protocol(15)
def test_the_cause_is_that_of_the_last_attempt(tmp_path: Path) -> None:
    store, plan = half_done(tmp_path)
    first = shards_of(store, plan)[0]
    last = ATTEMPT[:-1] + "2"
    put_attempt(store, plan, first, last, AttemptEnd.ENGINE_FAILED, "no GPU was found")
    settle_shards(store, plan, generation=1)
    message = read_results(store, plan, first)[-1]["error"]["message"]
    assert message == f"attempt {last} ended engine_failed: no GPU was found"


@pytest.mark.protocol(15)
def test_the_cause_names_how_the_pod_ended_and_where(tmp_path: Path) -> None:
    store, plan = half_done(tmp_path)
    first = shards_of(store, plan)[0]
    seen = {"pod_outcome": PodOutcome.OOM_KILLED, "pod_uid": "uid-1", "node": "spot-7"}
    put_attempt(store, plan, first, last := ATTEMPT[:-1] + "2", **seen)
    settle_shards(store, plan, generation=1)
    message = read_results(store, plan, first)[-1]["error"]["message"]
    said = PodOutcome.OOM_KILLED.sentence
    assert message == f"attempt {last} ended oom_killed: {said} (pod uid-1, node spot-7)"


def test_an_error_that_a_segment_holds_keeps_its_own_reason(tmp_path: Path) -> None:
    store, plan = half_done(tmp_path)
    first = shards_of(store, plan)[0]
    third = requests_of(store, plan, first)[2]
    put_segment(store, plan, first, [error(third, "too_long")], n=1)
    settlement = settle_shards(store, plan, generation=1)
    assert read_results(store, plan, first)[2]["error"]["code"] == "too_long"
    assert settlement.dead_letters["too_long"] == 1


@pytest.mark.protocol(15, 16)
def test_max_dead_counts_duplicates_and_over_it_nothing_changes(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS, limits={"max_rejected": 0, "max_dead": 0.2})
    first, *rest = shards_of(store, plan)
    for shard in rest:
        answer_shard(store, plan, shard)
    put_attempt(store, plan, first)
    assert store.folder is not None
    before = snapshot(store.folder)
    entry = read_shards(store, plan)[0]
    assert entry.documents > entry.requests, "the shard has duplicates, or this test says nothing"
    says = (
        rf"{entry.documents} of 18 rows read have no result.*max_dead allows 20.00%.*"
        rf"{entry.requests} shard_dead.*shardline resume {plan.job_id}"
    )
    with pytest.raises(LimitExceeded, match=says):
        settle_shards(store, plan, generation=1)
    assert snapshot(store.folder) == before


@pytest.mark.protocol(15)
def test_after_a_refusal_the_shard_can_still_be_done(tmp_path: Path) -> None:
    store, plan = half_done(tmp_path, limits={"max_rejected": 0, "max_dead": 0})
    first = shards_of(store, plan)[0]
    with pytest.raises(LimitExceeded):
        settle_shards(store, plan, generation=1)
    rest = [result(r) for r in requests_of(store, plan, first)[2:]]
    put_segment(store, plan, first, rest, attempt=ATTEMPT[:-1] + "9")
    assert commit_results(store, plan.layout, first) is Put.CREATED
    assert settle_shards(store, plan, generation=2).dead_documents == 0


@pytest.mark.protocol(16)
def test_dead_letters_of_shards_that_are_done_count_in_max_dead(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS, limits={"max_rejected": 0, "max_dead": 0.9})
    for shard in shards_of(store, plan):
        answer_shard(store, plan, shard, error)
    with pytest.raises(LimitExceeded, match=r"18 of 18 rows.*12 engine_error"):
        settle_shards(store, plan, generation=1)


@pytest.mark.protocol(15)
def test_shards_without_an_attempt_stop_the_job_and_nothing_changes(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    first, second, *_ = shards = shards_of(store, plan)
    answer_shard(store, plan, first)
    assert store.folder is not None
    before = snapshot(store.folder)
    says = (
        rf"{len(shards) - 1} of {len(shards)} shards never had an attempt \({second}.*"
        rf"shardline resume {plan.job_id}"
    )
    with pytest.raises(JobNotReady, match=says):
        settle_shards(store, plan, generation=1)
    assert snapshot(store.folder) == before


@pytest.mark.protocol(15, 16)
def test_a_partial_job_seals_what_never_ran_and_does_not_count_it_as_dead(tmp_path: Path) -> None:
    limits = {"max_rejected": 0, "max_dead": 0, "partial": True}
    store, plan = small_job(tmp_path, ROWS, limits=limits)
    first, *rest = shards_of(store, plan)
    answer_shard(store, plan, first)
    settlement = settle_shards(store, plan, generation=1)
    assert settlement.not_run_shards == rest
    assert settlement.dead_documents == 0
    done = read_shards(store, plan)[0].documents
    assert settlement.not_run_documents == 18 - done
    report = merge_shards(store, plan)
    assert report.rows == done
    assert set(report.dead_letters) == {"not_run"}


@pytest.mark.protocol(20)
def test_a_cancelled_generation_is_not_settled(tmp_path: Path) -> None:
    store, plan = half_done(tmp_path)
    store.put_once(plan.layout.cancel(3), b"")
    with pytest.raises(Cancelled, match="shardline resume"):
        settle_shards(store, plan, generation=3)
    assert settle_shards(store, plan, generation=4).shards == len(shards_of(store, plan))


def test_dead_letters_name_every_document_with_attempt_and_reason(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    for shard in shards_of(store, plan):
        answer_shard(store, plan, shard, lambda r: error(r, "too_long"))
    settle_shards(store, plan, generation=1)
    letters = [
        json.loads(line)
        for shard in shards_of(store, plan)
        for line in store.read(plan.layout.dead_letters(shard)).splitlines()
    ]
    by_id = {letter["document_id"]: letter for letter in letters}
    assert set(by_id) == {f"d{i}" for i in range(18)}
    assert by_id["d13"]["duplicate_of"] == "d1"
    assert {letter["attempt"] for letter in letters} == {ATTEMPT}
    assert {letter["reason"] for letter in letters} == {"too_long"}
    rows = [letter["row"] for letter in by_id.values()]
    assert len(set(rows)) == 18


def test_settling_in_memory_gives_the_same_results_as_on_disk(tmp_path: Path) -> None:
    """The store is another one; the code and the bytes are the same."""
    disk, plan = half_done(tmp_path)
    memory = open_store("memory://")
    assert disk.folder is not None
    for name, content in snapshot(disk.folder).items():
        memory.put_once(name, content)
    settle_shards(disk, plan, generation=1)
    settle_shards(memory, plan, generation=1)
    for shard in shards_of(disk, plan):
        path = plan.layout.results(shard)
        assert memory.read(path) == disk.read(path)


# races, by hand and for real


@pytest.mark.protocol(15)
def test_a_seal_that_loses_to_a_late_worker_reads_the_workers_results(tmp_path: Path) -> None:
    store = ScriptedStore(tmp_path / "root")
    _, plan = half_done(tmp_path, store=store)
    first = shards_of(store, plan)[0]
    late = lines_of([result(r) for r in requests_of(store, plan, first)])

    def worker_commits(path: str) -> None:
        if path == plan.layout.results(first):
            store.before_create = None
            store.put_once(path, late)

    store.before_create = worker_commits
    settlement = settle_shards(store, plan, generation=1)
    assert store.read(plan.layout.results(first)) == late
    assert settlement.dead_shards == []
    assert settlement.dead_letters == {}


@pytest.mark.protocol(15)
def test_a_late_worker_loses_to_a_seal_and_the_sealed_lines_stand(tmp_path: Path) -> None:
    store, plan = half_done(tmp_path)
    first = shards_of(store, plan)[0]
    settle_shards(store, plan, generation=1)
    sealed = store.read(plan.layout.results(first))
    rest = [result(r) for r in requests_of(store, plan, first)[2:]]
    put_segment(store, plan, first, rest, attempt=ATTEMPT[:-1] + "9")
    assert commit_results(store, plan.layout, first) is Put.TAKEN
    assert store.read(plan.layout.results(first)) == sealed


@pytest.mark.protocol(15)
def test_two_settles_racing_a_late_worker_agree_with_the_results(tmp_path: Path) -> None:
    for round_ in range(5):
        store, plan = half_done(tmp_path / str(round_))
        first = shards_of(store, plan)[0]
        rest = [result(r) for r in requests_of(store, plan, first)[2:]]
        start = threading.Barrier(3)
        settled: list[Any] = []

        def settle(store: Store, plan: Plan, start: threading.Barrier, into: list[Any]) -> None:
            start.wait()
            into.append(settle_shards(store, plan, generation=1))

        arguments = (store, plan, start, settled)
        threads = [threading.Thread(target=settle, args=arguments) for _ in range(2)]
        for thread in threads:
            thread.start()
        start.wait()
        put_segment(store, plan, first, rest, attempt=ATTEMPT[:-1] + "9")
        commit_results(store, plan.layout, first)
        for thread in threads:
            thread.join()
        assert settled[0] == settled[1]
        dead = sum(line["error"] is not None for line in read_results(store, plan, first))
        assert settled[0].dead_letters == ({"shard_dead": dead} if dead else {})
        merge_shards(store, plan)


@pytest.mark.protocol(8, 15)
@pytest.mark.parametrize("after", [False, True], ids=["put fails", "reply lost"])
def test_settle_and_merge_that_stop_at_any_write_converge_when_run_again(
    tmp_path: Path, after: bool
) -> None:
    store, plan = half_done(tmp_path)
    assert store.folder is not None
    base = tmp_path / "base"
    shutil.copytree(store.folder, base)
    whole_store = ScriptedStore(tmp_path / "root")
    settle_shards(whole_store, plan, generation=1)
    merge_shards(whole_store, plan)
    whole, writes = snapshot(tmp_path / "root"), len(whole_store.written)
    assert writes > 8
    for fail_at in range(writes):
        folder = tmp_path / f"run-{fail_at}"
        shutil.copytree(base, folder)
        with pytest.raises(StoreUnavailable):
            settle_and_merge(ScriptedStore(folder, fail_at, after=after), plan)
        settle_and_merge(ScriptedStore(folder), plan)
        assert snapshot(folder) == whole
        shutil.rmtree(folder)


def settle_and_merge(store: Store, plan: Plan) -> None:
    settle_shards(store, plan, generation=1)
    merge_shards(store, plan)


@pytest.mark.protocol(15)
def test_what_was_done_ahead_in_a_shard_that_was_never_run_is_kept(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS, limits={"partial": True, "max_dead": 0.9})
    first, second, *rest = shards_of(store, plan)
    for shard in rest:
        answer_shard(store, plan, shard)
    # another shard's worker had them: no attempt of their own
    put_segment(store, plan, first, [result(r) for r in requests_of(store, plan, first)])
    put_segment(store, plan, second, [error(requests_of(store, plan, second)[0])])
    settlement = settle_shards(store, plan, generation=1)
    assert settlement.dead_shards == []
    assert settlement.not_run_shards == [second]
    lines = read_results(store, plan, second)
    codes = [line["error"]["code"] for line in lines]
    assert codes == ["engine_error"] + ["not_run"] * (len(lines) - 1)
    assert all(line["response"] for line in read_results(store, plan, first))
