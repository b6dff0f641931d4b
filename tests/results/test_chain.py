"""A job and its replays read as one: what is counted, and what is found when a file was changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from shardline.errors import LawBroken
from shardline.layout import published
from shardline.plan import Plan
from shardline.results.chain import Chain, read_cut
from shardline.results.cut_replay import cut_replay, replayed_request
from shardline.results.merge import merge_shards
from shardline.results.open_replay import Wish, open_replay
from shardline.results.settle import settle_shards
from shardline.results.verify import verify_job
from shardline.shards.manifest import read_shards
from shardline.store import Store
from tests.factories import make_job
from tests.results.answers import (
    NOW,
    answer_all,
    error,
    publish_unseen,
    requests_of,
    result,
    small_job,
    text_of,
)
from tests.results.test_vectors import embedded

ROWS: list[Any] = [{"id": f"d{i}", "text": f"text {i:02d}"} for i in range(12)]


def dead_job(folder: Path, **overrides: Any) -> tuple[Store, Plan]:
    """A published job of three shards without a single result."""
    store, plan = small_job(folder, ROWS, **overrides)
    answer_all(store, plan, error)
    publish_unseen(store, plan)
    return store, plan


def opened(store: Store, plan: Plan, changes: dict[str, Any] | None = None) -> Plan:
    found = open_replay(store, plan, Wish((), changes or {}), now=NOW)
    assert found is not None
    cut_replay(store, found)
    return found


def spoil(store: Store, replay: Plan) -> None:
    """Take the first line out of the replay's own results."""
    path = replay.layout.results(read_shards(store, replay)[0].shard)
    store.write(path, b"".join(store.read(path).splitlines(keepends=True)[1:]))


def test_a_chain_has_every_request_of_the_parent_in_its_order_with_its_last_end(
    tmp_path: Path,
) -> None:
    """Although a replay's shards end in the middle of the parent's."""
    store, plan = dead_job(tmp_path)
    replay = opened(store, plan, {"shards.max_requests": 5})
    answer_all(store, replay, lambda r: error(r, "stalled") if "07" in text_of(r) else result(r))
    publish_unseen(store, replay)
    chain = Chain(store, replay)
    ends = [end for number in range(3) for end in chain.read(number).results.ended.items()]
    asked = [r for e in chain.shards for r in requests_of(store, plan, e.shard)]
    assert [name for name, _ in ends] == [r.custom_id for r in asked]
    reasons = {text_of(r): end.reason for r, (_, end) in zip(asked, ends, strict=True)}
    assert reasons == {row["text"]: None for row in ROWS} | {"text 07": "stalled"}
    assert {end.job_id for _, end in ends} == {replay.job_id}


def test_shards_of_a_replay_keep_the_limit_in_bytes(tmp_path: Path) -> None:
    store, plan = dead_job(tmp_path)
    size = len(store.read(plan.layout.shard(read_shards(store, plan)[0].shard))) // 4
    limit = max(1_000, 7 * size)
    replay = opened(store, plan, {"shards.max_bytes": limit})
    cut = read_cut(store, replay)
    assert len(cut.shards) > 1
    assert all(entry.size_bytes <= limit for entry in cut.shards)
    assert cut.requests == 12


def test_merge_refuses_a_replay_that_lost_a_line_and_verify_names_it(tmp_path: Path) -> None:
    store, plan = dead_job(tmp_path)
    replay = opened(store, plan)
    answer_all(store, replay)
    settle_shards(store, replay, generation=1)
    whole = store.read(replay.layout.results("shard-00000-000"))
    spoil(store, replay)
    with pytest.raises(LawBroken, match=f"{replay.job_id}: .*1 requests without a line in results"):
        merge_shards(store, replay)
    store.write(replay.layout.results("shard-00000-000"), whole)
    publish_unseen(store, replay)
    spoil(store, replay)
    said = "; ".join(verify_job(store, replay).differences)
    assert f"replay {replay.job_id}: shard shard-00000-000: 1 requests without a line" in said
    assert "11 requests that were run, 12 planned" in said
    assert "1 rows too many" in said


def test_a_shard_file_of_the_parent_that_was_changed_is_not_replayed(tmp_path: Path) -> None:
    store, plan = dead_job(tmp_path)
    path = plan.layout.shard(read_shards(store, plan)[1].shard)
    store.write(path, store.read(path).replace(b"text 0", b"tixt 0", 1))
    with pytest.raises(LawBroken, match=f"{path}: has not the manifest's sha256"):
        opened(store, plan)


def test_a_request_keeps_all_but_the_parameters_that_changed(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS, output={"choices": ["a", "b"]})
    line = store.read(plan.layout.shard(read_shards(store, plan)[0].shard)).splitlines(True)[0]
    parent = plan.job_file
    same = replayed_request(parent, parent, line)
    assert same.line == line
    changed = make_job(
        tmp_path, output={"choices": ["a", "b"]}, parameters={"max_tokens": 9, "seed": 1}
    )
    other = replayed_request(parent, changed, line)
    assert other.custom_id == same.custom_id
    assert b'"max_tokens":9' in other.line
    assert b'"seed":1' in other.line
    assert b"temperature" not in other.line
    assert other.line.count(b'"model":"test-job"') == line.count(b'"model":"test-job"') == 1
    assert (b"response_format" in other.line, b'"messages"' in other.line) == (True, True)
    assert other.length - same.length == len(other.line) - len(line)


def test_vectors_are_replayed_in_the_length_of_the_table(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS, kind="embedding")
    bad = {"text 03", "text 07"}
    answer_all(store, plan, lambda r: error(r) if r.body["input"] in bad else embedded(r))
    publish_unseen(store, plan)
    replay = opened(store, plan)
    answer_all(store, replay, embedded)
    assert publish_unseen(store, replay).rows == 12
    frame = DeltaTable(store.uri_of(published("test-job"))).to_pandas()
    assert {len(vector) for vector in frame.output} == {4}
    assert verify_job(store, replay).holds


def test_the_first_vectors_of_a_replay_decide_where_the_parent_had_none(tmp_path: Path) -> None:
    store, plan = dead_job(tmp_path, kind="embedding")
    replay = opened(store, plan)
    answer_all(store, replay, embedded)
    assert publish_unseen(store, replay).rows == 12
    assert verify_job(store, replay).holds


def test_values_that_the_types_cannot_hold_are_counted_once(tmp_path: Path) -> None:
    """Of a replay's shard too, although it is read for each shard of the parent."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    store, plan = dead_job(tmp_path, output={"json_schema": schema})
    replay = opened(store, plan)
    huge = '{"n": 123456789012345678901234567890}'
    answer_all(store, replay, lambda r: result(r, huge if text_of(r) == "text 05" else '{"n": 1}'))
    publish_unseen(store, replay)
    assert merge_shards(store, replay).lost_values == 1
