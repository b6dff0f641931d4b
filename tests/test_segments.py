"""Which line counts when a request ended more than once, and how results are built."""

from __future__ import annotations

import itertools
import json
import resource
from pathlib import Path

import pytest

from shardline.errors import LawBroken, SickMachine
from shardline.layout import JobLayout
from shardline.segments import SegmentName, commit_results, read_lines, resolve
from shardline.store import Put, Store, open_store
from tests.factories import make_store

LAYOUT = JobLayout("test-job-all-00000000")
SHARD = "shard-00000-000"


def result(custom_id: str, said: str = "ok") -> bytes:
    line = {"id": said, "custom_id": custom_id, "response": {"status_code": 200}, "error": None}
    return json.dumps(line).encode() + b"\n"


def error(custom_id: str, code: str = "engine_error") -> bytes:
    line = {"id": code, "custom_id": custom_id, "response": None, "error": {"code": code}}
    return json.dumps(line).encode() + b"\n"


def put_shard(store: Store, ids: str) -> None:
    lines = b"".join(json.dumps({"custom_id": c, "body": {}}).encode() + b"\n" for c in ids)
    store.put_same(LAYOUT.shard(SHARD), lines)


def put_segment(store: Store, attempt: str, n: int, *lines: bytes) -> None:
    store.put_same(LAYOUT.segment(SHARD, attempt, n), b"".join(lines))


def results(store: Store) -> list[str]:
    found = store.read(LAYOUT.results(SHARD)).decode().splitlines()
    return [json.loads(line)["id"] for line in found]


def test_segment_name_survives_an_attempt_id_with_dashes() -> None:
    name = SegmentName.parse("jobs/j/segments/s/019a-7b-000012.jsonl")
    assert name == SegmentName("019a-7b", 12)
    assert str(name) == "019a-7b-000012"


def test_an_object_that_is_no_segment_is_refused_by_name() -> None:
    with pytest.raises(LawBroken, match=r"notes\.txt"):
        SegmentName.parse("jobs/j/segments/s/notes.txt")


@pytest.mark.protocol(8)
def test_a_result_beats_an_error_and_then_the_smallest_name_wins_in_any_order() -> None:
    segments = [
        (SegmentName("a", 2), [error("x", "stalled"), result("y", "late")]),
        (SegmentName("a", 1), [error("x"), error("y")]),
        (SegmentName("b", 0), [result("x"), result("y")]),
    ]
    for order in itertools.permutations(segments):
        best = resolve(found for name, lines in order for found in read_lines(name, lines))
        assert best["x"].segment == SegmentName("b", 0)
        assert best["y"].segment == SegmentName("a", 2)


@pytest.mark.protocol(7, 8)
def test_results_hold_one_line_per_request_in_the_order_of_the_shard(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    put_shard(store, "abc")
    put_segment(store, "t1", 0, result("c", "c1"), error("a"))
    put_segment(store, "t2", 0, result("b", "b2"), result("a", "a2"), result("c", "c2"))
    assert commit_results(store, LAYOUT, SHARD) is Put.CREATED
    assert results(store) == ["a2", "b2", "c1"]
    assert commit_results(store, LAYOUT, SHARD) is Put.SAME


def test_results_are_the_same_from_memory_as_from_disk(tmp_path: Path) -> None:
    stores = [make_store(tmp_path), open_store("memory://")]
    for store in stores:
        put_shard(store, "ab")
        put_segment(store, "t1", 0, result("b"), result("a"))
        commit_results(store, LAYOUT, SHARD)
    assert len({store.read(LAYOUT.results(SHARD)) for store in stores}) == 1


@pytest.mark.protocol(7)
def test_a_request_without_a_line_is_refused_unless_it_is_filled(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    put_shard(store, "ab")
    put_segment(store, "t1", 0, result("a"))
    with pytest.raises(LawBroken, match="no segment holds b"):
        commit_results(store, LAYOUT, SHARD)
    assert not store.exists(LAYOUT.results(SHARD))
    commit_results(store, LAYOUT, SHARD, lambda c: error(c, "shard_dead").strip())
    assert results(store) == ["ok", "shard_dead"]


@pytest.mark.protocol(7)
def test_a_line_for_a_request_that_the_shard_lacks_is_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    put_shard(store, "a")
    put_segment(store, "t1", 0, result("a"), result("z"))
    with pytest.raises(LawBroken, match="first z"):
        commit_results(store, LAYOUT, SHARD)


@pytest.mark.protocol(8)
def test_a_segment_that_lands_while_results_are_built_is_taken_in() -> None:
    """The race of PROTOCOL 8: whoever builds results lists again just before the put."""
    store = open_store("memory://")
    put_shard(store, "ab")
    put_segment(store, "t1", 0, result("a"))

    def late(custom_id: str) -> bytes:
        store.put_once(LAYOUT.segment(SHARD, "t2", 0), result("b", "late"))
        return error(custom_id, "shard_dead").strip()

    commit_results(store, LAYOUT, SHARD, late)
    assert results(store) == ["ok", "late"]


def test_more_segments_than_a_process_may_hold_open(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    ids = [f"r{i:04d}" for i in range(450)]
    put_shard(store, ids)  # type: ignore[arg-type]
    for i, custom_id in enumerate(ids):
        put_segment(store, "t", (i * 7) % 450, result(custom_id, custom_id))
    commit_results(store, LAYOUT, SHARD)
    assert results(store) == ids


def test_a_torn_line_names_segment_and_line() -> None:
    with pytest.raises(LawBroken, match="t-000003 line 1"):
        list(read_lines(SegmentName("t", 3), [result("a"), b'{"custom_id":']))


@pytest.mark.protocol(12)
def test_a_machine_without_room_for_the_results_looks_sick() -> None:
    store = open_store("memory://")
    ids = [f"r{i:04d}" for i in range(50)]
    put_shard(store, ids)  # type: ignore[arg-type]
    for i, custom_id in enumerate(ids):
        put_segment(store, "t", i, result(custom_id))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(store.read(LAYOUT.shard(SHARD))) + 100, hard))
    try:
        with pytest.raises(SickMachine, match="File too large"):
            commit_results(store, LAYOUT, SHARD)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not store.exists(LAYOUT.results(SHARD))
