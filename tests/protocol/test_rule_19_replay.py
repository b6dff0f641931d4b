"""PROTOCOL 19: dead letters run again as a job of their own, and the whole job published anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from deltalake import DeltaTable

from shardline.errors import JobFileError, ReplayRefused, WrongInput
from shardline.layout import published
from shardline.plan import Plan
from shardline.results.cut_replay import cut_replay
from shardline.results.merge import merge_shards
from shardline.results.open_replay import abandon_replay, open_replay
from shardline.results.outcome import check_outcome
from shardline.results.publish import current_publication, history, publish_results
from shardline.results.settle import settle_shards
from shardline.results.verify import verify_job
from shardline.results.wish import Wish
from shardline.rows import Request, Result
from shardline.shards.manifest import read_manifest, read_shards
from shardline.store import Store, open_store
from tests.protocol.walks import at_once
from tests.results.answers import (
    NOW,
    answer_all,
    error,
    finish,
    lines_of,
    publish_unseen,
    put_attempt,
    put_segment,
    requests_of,
    result,
    small_job,
    text_of,
)
from tests.s3_server import s3_server
from tests.worker.in_process import FaultyStore, ProcessDied, die_at

pytestmark = pytest.mark.protocol(19)

LATER = NOW + timedelta(hours=1)
# 12 requests in three shards; every text twice but the last two
ROWS: list[Any] = [{"id": f"d{i}", "text": f"text {i % 12:02d}"} for i in range(22)]
REASONS = {"text 01": "engine_error", "text 05": "invalid_output", "text 10": "too_long"}


def flawed(request: Request) -> Result:
    """Three dead letters with five documents, one of them hopeless."""
    reason = REASONS.get(text_of(request))
    return error(request, reason) if reason else result(request)


def still(*texts: str) -> Callable[[Request], Result]:
    """Every request gets a new answer but these, which fail again."""
    return lambda r: (
        error(r, "stalled") if text_of(r) in texts else result(r, f"again {text_of(r)}")
    )


def parent_job(folder: Path, **overrides: Any) -> tuple[Store, Plan]:
    """A published job with dead letters."""
    store, plan = small_job(folder, ROWS, **overrides)
    answer_all(store, plan, flawed)
    publish_unseen(store, plan)
    return store, plan


def opened(store: Store, plan: Plan, *reasons: str, **changes: Any) -> Plan:
    dotted = {name.replace("__", "."): value for name, value in changes.items()}
    found = open_replay(store, plan, Wish(reasons, dotted), now=LATER)
    assert found is not None
    return found


def replayed(
    store: Store, plan: Plan, *reasons: str, answer: Callable[[Request], Result] = result
) -> Plan:
    """A whole replay, but the gate."""
    found = opened(store, plan, *reasons)
    cut_replay(store, found)
    answer_all(store, found, answer)
    publish_unseen(store, found)
    return found


def texts_of(store: Store, plan: Plan) -> list[str]:
    """What a replay runs."""
    return [text_of(r) for e in read_shards(store, plan) for r in requests_of(store, plan, e.shard)]


def table_of(store: Store) -> dict[str, Any]:
    """document id → output, as readers see it."""
    frame = DeltaTable(store.uri_of(published("test-job"))).to_pandas()
    return dict(zip(frame["document_id"], frame["output"], strict=True))


def letters_of(store: Store, plan: Plan) -> list[str]:
    listed = store.list(plan.layout.dead_letters_prefix)
    return sorted(line for found in listed for line in store.read(found.path).decode().splitlines())


# what is run, and what becomes of the table


def test_what_may_do_better_is_run_and_the_whole_job_is_published_anew(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)
    before = table_of(store)
    replay = replayed(store, plan)
    assert replay.job_id == f"{plan.job_id}-r1"
    assert texts_of(store, replay) == ["text 01", "text 05"]
    assert read_manifest(store, replay).parent == plan.job_id
    after = table_of(store)
    assert set(after) - set(before) == {"d1", "d13", "d5", "d17"}
    assert {name: after[name] for name in before} == before
    law = check_outcome(store, replay).publication.law
    assert (law.rows_read, law.documents, law.results, law.duplicates, law.dead_letters) == (
        22, 22, 11, 10, 1,
    )  # fmt: skip
    assert verify_job(store, replay).holds
    assert verify_job(store, plan).holds


def test_the_commit_says_whose_replay_it_is_and_each_row_who_answered_it(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)
    replay = replayed(store, plan)
    current = current_publication(store, "test-job", None)
    assert current is not None
    assert (current.job_id, current.parent) == (replay.job_id, plan.job_id)
    assert current.planned_at == plan.planned_at
    frame = DeltaTable(store.uri_of(published("test-job"))).to_pandas()
    own = frame[frame.job_id == replay.job_id]
    assert set(own.document_id) == {"d1", "d13", "d5", "d17"}
    assert set(frame.job_id) == {plan.job_id, replay.job_id}


def test_dead_letters_of_a_replay_are_those_of_the_whole_job(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)
    replay = replayed(store, plan, answer=still("text 05"))
    said = letters_of(store, replay)
    assert [("stalled" in line, "too_long" in line) for line in said] == [
        (False, True), (True, False), (True, False),
    ]  # fmt: skip
    report = merge_shards(store, replay)
    assert report.dead_letters == {"stalled": 1, "too_long": 1}
    assert report.replayed is not None
    assert (report.replayed.dead, report.replayed.results) == (3, 1)
    assert (report.replayed.still_dead, report.replayed.untouched) == (1, 1)


@pytest.mark.slow
def test_the_real_gate_lets_a_replay_pass(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)
    replay = opened(store, plan)
    cut_replay(store, replay)
    answer_all(store, replay)
    assert finish(store, replay).rows == 21


def test_one_reason_is_run_alone_and_a_hopeless_one_when_it_is_named(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)
    assert texts_of(store, replayed(store, plan, "invalid_output")) == ["text 05"]
    assert texts_of(store, replayed(store, plan, "too_long")) == ["text 10"]
    with pytest.raises(WrongInput, match=r"sad: no reason .* there are: bad_parameter"):
        opened(store, plan, "sad")


def test_a_replay_cuts_shards_of_any_size_over_the_shards_of_its_parent(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    answer_all(store, plan, error)
    publish_unseen(store, plan)
    replay = opened(store, plan, shards__max_requests=5)
    cut = cut_replay(store, replay)
    assert [entry.requests for entry in cut.shards] == [5, 5, 2]
    assert cut.ranges == [(0, 1), (1, 2), (2, 2)]
    answer_all(store, replay)
    assert publish_unseen(store, replay).rows == 22
    assert verify_job(store, replay).holds


@pytest.mark.parametrize(
    ("partition", "changes"),
    [("2026-11-28", {}), (None, {"corpus__dedupe": "none"}), (None, {"corpus__carry": ["id"]})],
)
def test_partitions_single_documents_and_carried_columns_are_replayed_alike(
    tmp_path: Path, partition: str | None, changes: dict[str, Any]
) -> None:
    store, plan = parent_job(tmp_path, partition=partition, **changes)
    replay = replayed(store, plan)
    current = current_publication(store, "test-job", partition)
    assert current is not None
    assert (current.job_id, current.rows) == (replay.job_id, 21)
    assert verify_job(store, replay).holds


def test_structured_answers_are_replayed_in_the_types_of_the_table(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    store, plan = small_job(tmp_path, ROWS, output={"json_schema": schema})

    def bad(request: Request) -> Result:
        is_bad = "05" in text_of(request)
        return error(request, "invalid_output") if is_bad else result(request, '{"n": 1}')

    answer_all(store, plan, bad)
    publish_unseen(store, plan)
    replayed(store, plan, answer=lambda r: result(r, '{"n": 2}'))
    assert sum(output["n"] == 2 for output in table_of(store).values()) == 2


# settings


def test_other_parameters_keep_the_custom_ids_and_then_every_reason_is_run(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)
    replay = opened(store, plan, parameters__max_tokens=99, parameters__seed=7)
    cut_replay(store, replay)
    parents = {
        r.custom_id: r for e in read_shards(store, plan) for r in requests_of(store, plan, e.shard)
    }
    asked = [r for e in read_shards(store, replay) for r in requests_of(store, replay, e.shard)]
    assert [text_of(r) for r in asked] == ["text 01", "text 05", "text 10"]
    for request in asked:
        old = parents[request.custom_id]
        assert request.body == old.body | {"max_tokens": 99, "seed": 7}
    answer_all(store, replay)
    assert publish_unseen(store, replay).rows == 22
    assert verify_job(store, replay).holds


def test_the_same_settings_written_again_are_no_others(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)
    replay = opened(store, plan, parameters__max_tokens=8, limits__max_dead=0.5)
    cut_replay(store, replay)
    assert texts_of(store, replay) == ["text 01", "text 05"]
    assert replay.job_file.limits.max_dead == 0.5


def test_another_model_is_pinned_and_its_rows_say_so(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)
    replay = opened(store, plan, "too_long", local__model="stub-large")
    cut_replay(store, replay)
    answer_all(store, replay)
    publish_unseen(store, replay)
    frame = DeltaTable(store.uri_of(published("test-job"))).to_pandas()
    assert dict(zip(frame.document_id, frame.model, strict=True))["d10"] == "stub-large"
    assert sum(frame.model == "stub-large") == 1


@pytest.mark.parametrize("field", ["messages", "corpus.uri", "output.choices", "limits", "rerun"])
def test_what_is_asked_and_what_is_published_cannot_change(tmp_path: Path, field: str) -> None:
    store, plan = parent_job(tmp_path)
    with pytest.raises(JobFileError, match=f"{field}: a replay cannot change it; it can: param"):
        open_replay(store, plan, Wish((), {field: 3}), now=LATER)
    assert not list(store.list(plan.layout.replays))


# one at a time


def test_of_two_that_are_opened_at_once_one_is_refused(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)

    def try_to(reason: str) -> Plan | str:
        try:
            return opened(open_store(store.uri), plan, reason)
        except ReplayRefused as refused:
            return str(refused)

    ends = at_once(lambda: try_to("engine_error"), lambda: try_to("invalid_output"))
    (refused,) = [end for end in ends if isinstance(end, str)]
    (replay,) = [end for end in ends if isinstance(end, Plan)]
    assert replay.job_id == f"{plan.job_id}-r1"
    assert f"`shardline resume {plan.job_id}-r1`" in refused
    assert f"`shardline replay {plan.job_id} --abandon`" in refused
    assert len(list(store.list(plan.layout.replays))) == 1


def test_the_same_wish_goes_on_with_the_replay_that_is_open(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)
    bias: dict[str, Any] = {"parameters__logit_bias": {1: 5}}  # a key that JSON writes as a string
    first = opened(store, plan, "engine_error", **bias)
    assert opened(store, plan, "engine_error", **bias) == first
    with pytest.raises(ReplayRefused, match="another replay is open"):
        opened(store, plan)


def test_an_abandoned_replay_publishes_no_more_and_makes_room_for_the_next(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)
    first = opened(store, plan)
    cut_replay(store, first)
    answer_all(store, first)
    assert abandon_replay(store, plan).job_id == first.job_id
    with pytest.raises(ReplayRefused, match="abandoned"):
        publish_unseen(store, first)
    with pytest.raises(ReplayRefused, match="no replay is open"):
        abandon_replay(store, plan)
    assert replayed(store, plan).job_id == f"{plan.job_id}-r2"


def test_one_that_was_abandoned_and_came_through_is_not_undone_by_the_next(tmp_path: Path) -> None:
    """It had looked for the marker just before; what it published stays, and the next starts there."""
    store, plan = parent_job(tmp_path)
    first = opened(store, plan, "engine_error")
    cut_replay(store, first)
    answer_all(store, first)
    abandon_replay(store, plan)
    second = opened(store, plan, "invalid_output")
    cut_replay(store, second)
    answer_all(store, second)
    store.delete(first.layout.abandoned)  # the moment before
    publish_unseen(store, first)
    with pytest.raises(ReplayRefused, match=rf"superseded by {first.job_id}; .*--abandon"):
        publish_unseen(store, second)
    abandon_replay(store, plan)
    third = replayed(store, plan, "invalid_output")
    assert verify_job(store, third).law.dead_letters == 1


def test_a_run_that_asks_again_gets_its_own_replay_even_when_it_is_done(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)
    mine = open_replay(store, plan, Wish(), now=LATER, opened_by="airflow:x:run")
    assert mine is not None
    cut_replay(store, mine)
    answer_all(store, mine, error)
    publish_unseen(store, mine)
    again = open_replay(store, plan, Wish(), now=LATER, opened_by="airflow:x:run")
    assert again == mine
    assert not publish_unseen(store, mine).is_new


# again and again


def test_replaying_twice_is_harmless(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)
    first = replayed(store, plan)
    before, versions = table_of(store), len(history(store, "test-job"))
    assert open_replay(store, plan, Wish(), now=LATER) is None
    assert open_replay(store, first, Wish(), now=LATER) is None
    assert (table_of(store), len(history(store, "test-job"))) == (before, versions)


def test_a_replay_of_a_replay_starts_from_it_and_has_the_same_parent(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)
    first = replayed(store, plan, answer=still("text 05"))
    second = opened(store, first)
    assert (second.job_id, second.whole_id) == (f"{plan.job_id}-r2", plan.job_id)
    assert second.replay is not None
    assert second.replay.base == first.job_id
    cut_replay(store, second)
    assert texts_of(store, second) == ["text 05"]
    answer_all(store, second, still())
    assert publish_unseen(store, second).law.dead_letters == 1
    third = replayed(store, second, "too_long")
    outputs = table_of(store)
    assert (outputs["d1"], outputs["d5"]) == ("again text 01", "again text 05")
    assert (outputs["d10"], outputs["d0"]) == ("answer to text 10", "answer to text 00")
    for job in (plan, first, second, third):
        assert verify_job(store, job).holds
    assert "nothing to do" in check_outcome(store, third).line


def test_what_a_job_and_its_early_replays_say_when_a_later_one_is_current(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)
    first = replayed(store, plan, answer=still("text 05"))
    second = replayed(store, plan)
    for job in (plan, first):
        assert publish_results(store, job).job_id == second.job_id
        assert check_outcome(store, job).line.startswith(f"job {job.job_id}: replayed since; job ")
    assert len(history(store, "test-job")) == 3


# only over its own


def test_a_replay_is_refused_when_its_parent_is_no_longer_current(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)
    replay = opened(store, plan)
    cut_replay(store, replay)
    answer_all(store, replay)
    _, newer = small_job(tmp_path, ROWS, store=store, rerun=1, now=NOW + timedelta(minutes=1))
    answer_all(store, newer)
    publish_unseen(store, newer)
    for force in (False, True):
        with pytest.raises(ReplayRefused, match=f"superseded by {newer.job_id}"):
            publish_unseen(store, replay, force=force)
    abandon_replay(store, plan)
    with pytest.raises(ReplayRefused, match="a replay would bring it back"):
        opened(store, plan)
    assert [p.job_id for p in history(store, "test-job")] == [newer.job_id, plan.job_id]


def test_a_job_that_was_planned_after_the_parent_replaces_its_replay(tmp_path: Path) -> None:
    """Although the replay was opened later: its rows are of the parent's time."""
    store, plan = parent_job(tmp_path)
    _, newer = small_job(tmp_path, ROWS, store=store, rerun=1, now=NOW + timedelta(minutes=1))
    answer_all(store, newer)
    replayed(store, plan)
    assert publish_unseen(store, newer).is_new


def test_a_table_that_was_rolled_back_to_the_parent_is_replayed_from_there(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)
    first = replayed(store, plan, answer=still("text 05"))
    DeltaTable(store.uri_of(published("test-job"))).restore(1)
    second = opened(store, plan)
    assert second.replay is not None
    assert (second.replay.base, second.replay.n) == (plan.job_id, 2)
    cut_replay(store, second)
    answer_all(store, second)
    publish_unseen(store, second)
    assert set(DeltaTable(store.uri_of(published("test-job"))).to_pandas().job_id) == {
        plan.job_id, second.job_id,
    }  # fmt: skip
    assert verify_job(store, first).current == second.job_id


# harvest


def sealed_with_a_late_worker(folder: Path, store: Store | None = None) -> tuple[Store, Plan, str]:
    """The first shard is sealed; then its lost worker, still alive, commits two more rows."""
    store, plan = small_job(folder, ROWS, store=store)
    first, *others = [entry.shard for entry in read_shards(store, plan)]
    requests = requests_of(store, plan, first)
    put_attempt(store, plan, first)
    put_segment(store, plan, first, [result(requests[0])])
    for shard in others:
        lines = [result(r) for r in requests_of(store, plan, shard)]
        store.put_once(plan.layout.results(shard), lines_of(lines))
    publish_unseen(store, plan)
    put_segment(store, plan, first, [result(r) for r in requests[1:3]], n=1)
    return store, plan, text_of(requests[3])


def test_what_a_late_worker_committed_is_harvested_and_not_run_again(tmp_path: Path) -> None:
    store, plan, left = sealed_with_a_late_worker(tmp_path)
    replay = opened(store, plan)
    cut = cut_replay(store, replay)
    assert (cut.dead, cut.harvested, cut.requests) == (3, 2, 1)
    assert texts_of(store, replay) == [left]
    answer_all(store, replay, still())
    publish_unseen(store, replay)
    frame = DeltaTable(store.uri_of(published("test-job"))).to_pandas()
    assert set(frame[frame.job_id == replay.job_id].output) == {f"again {left}"}
    assert len(frame) == 22
    assert verify_job(store, replay).holds


def test_a_harvest_alone_needs_no_model_and_takes_reasons_that_nobody_named(tmp_path: Path) -> None:
    store, plan, _ = sealed_with_a_late_worker(tmp_path)
    replay = opened(store, plan, "too_long")
    cut = cut_replay(store, replay)
    assert (cut.harvested, cut.requests, cut.untouched) == (2, 0, 1)
    assert publish_unseen(store, replay).law.dead_letters == 1
    assert verify_job(store, replay).holds
    assert open_replay(store, plan, Wish(("too_long",)), now=LATER) is None


def test_a_worker_that_is_late_again_changes_nothing_that_was_cut(tmp_path: Path) -> None:
    store, plan, left = sealed_with_a_late_worker(tmp_path)
    replay = opened(store, plan)
    cut_replay(store, replay)
    store.delete(replay.layout.replay_cut)  # as if the first run had died before this put
    first = read_shards(store, plan)[0].shard
    late = next(r for r in requests_of(store, plan, first) if text_of(r) == left)
    put_segment(store, plan, first, [result(late)], n=2)
    assert cut_replay(store, replay).requests == 1
    answer_all(store, replay, still())
    publish_unseen(store, replay)
    assert verify_job(store, replay).holds


def test_a_late_worker_of_a_replay_is_harvested_by_the_next(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)
    first = opened(store, plan)
    cut_replay(store, first)
    (shard,) = [entry.shard for entry in read_shards(store, first)]
    put_attempt(store, first, shard)
    publish_unseen(store, first)  # sealed
    requests = requests_of(store, first, shard)
    put_segment(store, first, shard, [result(r, "late") for r in requests])
    second = opened(store, plan)
    assert cut_replay(store, second).harvested == 2
    publish_unseen(store, second)
    frame = DeltaTable(store.uri_of(published("test-job"))).to_pandas()
    assert set(frame[frame.output == "late"].job_id) == {first.job_id}
    assert verify_job(store, second).holds


@pytest.mark.slow
def test_an_object_store_is_harvested_and_replayed_like_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="replays")
        store, plan, left = sealed_with_a_late_worker(tmp_path, open_store("s3://replays/root"))
        replay = opened(store, plan)
        assert cut_replay(store, replay).harvested == 2
        answer_all(store, replay, still(left))
        publish_unseen(store, replay)
        assert replayed(store, plan).whole_id == plan.job_id
        current = current_publication(store, "test-job", None)
        assert current is not None
        assert (current.job_id, current.rows) == (f"{plan.job_id}-r2", 22)
        for job in (plan, replay):
            assert verify_job(store, job).holds


# kept for keep_days


@pytest.mark.parametrize("what", ["ledger", "shard"])
def test_a_replay_is_refused_when_what_it_needs_was_cleaned_up(tmp_path: Path, what: str) -> None:
    store, plan = parent_job(tmp_path)
    gone = getattr(plan.layout, what)(read_shards(store, plan)[-1].shard)
    store.delete(gone)
    with pytest.raises(ReplayRefused, match=f"{gone} is gone.*KEEP_DAYS.*rerun"):
        opened(store, plan)
    assert not list(store.list(plan.layout.replays))


def test_a_file_that_goes_after_the_opening_is_named_too(tmp_path: Path) -> None:
    store, plan = parent_job(tmp_path)
    replay = opened(store, plan)
    for entry in read_shards(store, plan):
        store.delete(plan.layout.ledger(entry.shard))
    with pytest.raises(ReplayRefused, match="is gone"):
        cut_replay(store, replay)


# crashes


def whole_replay(store: Store, plan: Plan) -> None:
    """Everything that a replay puts, with its worker's part."""
    replay = opened(store, plan)
    cut_replay(store, replay)
    for entry in read_shards(store, replay):
        lines = [still("text 05")(r) for r in requests_of(store, replay, entry.shard)]
        put_attempt(store, replay, entry.shard)
        put_segment(store, replay, entry.shard, lines)
    settle_shards(store, replay, generation=1)
    merge_shards(store, replay)
    store.put_once(replay.layout.validation, b"{}")
    publish_results(store, replay)


def snapshot(folder: Path) -> dict[str, bytes]:
    """All that a replay has left but the table's log, which holds the moment of each commit."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "_delta_log" not in path.parts
    }


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_replay_that_dies_at_any_put_ends_in_the_same_bytes(tmp_path: Path, moment: str) -> None:
    store, plan = parent_job(tmp_path / "job")
    assert store.folder is not None

    def copy(name: str) -> Path:
        return Path(shutil.copytree(store.folder or "", tmp_path / name))

    whole = copy("whole")
    counting = FaultyStore(str(whole), lambda number, path, moment: None)
    whole_replay(counting, plan)
    expected = snapshot(whole)
    assert len(counting.paths) > 20
    for number in range(len(counting.paths)):
        folder = copy(f"{number}")
        with pytest.raises(ProcessDied):
            whole_replay(FaultyStore(str(folder), die_at(number, moment)), plan)
        whole_replay(open_store(str(folder)), plan)
        assert snapshot(folder) == expected, counting.paths[number]
        assert len(history(open_store(str(folder)), "test-job")) == 2
        shutil.rmtree(folder)
