"""Shards: de-duplicated, sorted by length, equal in size, and the same bytes on every run."""

from __future__ import annotations

import hashlib
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.corpus.spill import SpillRecord
from shardline.errors import LawBroken, StoreUnavailable
from shardline.plan import Plan
from shardline.rows import ShardEntry
from shardline.shards.cut import cut_shards, even_cuts, group_requests
from shardline.shards.ledger import read_ledger
from shardline.shards.manifest import read_shards
from shardline.store import Store
from tests.factories import make_job, write_corpus
from tests.results.answers import prepare, requests_of, small_job, text_of
from tests.results.scripted_store import ScriptedStore, snapshot

ROWS = [{"id": f"d{i}", "text": f"text {i % 7} " + "x" * (i % 5)} for i in range(60)]


def record(fingerprint: str, row: int, body: bytes | None = b'{"messages":[]}') -> SpillRecord:
    return SpillRecord(
        (0, row), fingerprint.encode().ljust(16), 15, f"d{row}", "part-0.jsonl", row, {}, body
    )


def ledger_of(store: Store, plan: Plan, shard: str) -> list[dict[str, Any]]:
    assert store.folder is not None
    batches = read_ledger(store.folder / plan.layout.ledger(shard))
    return [
        dict(zip(b, row, strict=True)) for b in batches for row in zip(*b.values(), strict=True)
    ]


def cut_all(store: Store, plan: Plan) -> None:
    for bucket_set in range(len(plan.bucket_sets)):
        cut_shards(store, plan, bucket_set)


@given(st.lists(st.integers(1, 1000), max_size=60), st.integers(1, 12), st.integers(1000, 5000))
def test_cuts_cover_every_line_once_and_stay_under_both_limits(
    sizes: list[int], max_requests: int, max_bytes: int
) -> None:
    sizes.sort()
    cuts = even_cuts(sizes, max_requests, max_bytes)
    assert [i for first, last in cuts for i in range(first, last)] == list(range(len(sizes)))
    assert all(0 < last - first <= max_requests for first, last in cuts)
    assert all(sum(sizes[first:last]) <= max_bytes for first, last in cuts)


def test_cuts_are_as_few_as_the_limits_allow_and_equal() -> None:
    assert even_cuts([10] * 10, 3, 1000) == [(0, 3), (3, 5), (5, 8), (8, 10)]
    assert even_cuts([10] * 9, 3, 1000) == [(0, 3), (3, 6), (6, 9)]
    assert even_cuts([100] * 7, 50, 350) == [(0, 3), (3, 5), (5, 7)]
    assert even_cuts([], 3, 1000) == []


def test_the_first_of_equal_documents_in_corpus_order_is_the_original(tmp_path: Path) -> None:
    records = [record("b", 1), record("a", 2), record("b", 3, None), record("a", 4, None)]
    requests = group_requests(records, make_job(tmp_path))
    assert [[d.row for d in r.documents] for r in requests] == [[2, 4], [1, 3]]


def test_a_body_that_stands_with_a_later_record_is_found(tmp_path: Path) -> None:
    requests = group_requests([record("a", 1, None), record("a", 2)], make_job(tmp_path))
    assert [d.row for d in requests[0].documents] == [1, 2]


def test_a_request_whose_body_is_nowhere_is_refused_by_place(tmp_path: Path) -> None:
    with pytest.raises(LawBroken, match=r"part-0\.jsonl row 5"):
        group_requests([record("a", 5, None)], make_job(tmp_path))


def test_every_document_stands_in_one_ledger_beside_its_request(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    text_of_row = {row["id"]: row["text"] for row in ROWS}
    seen: list[str] = []
    for entry in read_shards(store, plan):
        requests = requests_of(store, plan, entry.shard)
        ledger = ledger_of(store, plan, entry.shard)
        assert len(requests) == entry.requests <= 4
        assert len(ledger) == entry.documents
        for row in ledger:
            request = requests[row["line"]]
            assert request.custom_id == row["fingerprint"]
            assert text_of(request) == text_of_row[row["document_id"]]
        seen += [row["document_id"] for row in ledger]
    assert sorted(seen) == sorted(text_of_row)


def test_a_duplicate_names_the_first_row_with_its_text(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    first: dict[str, str] = {}
    for row in ROWS:
        first.setdefault(row["text"], row["id"])
    originals = set(first.values())
    for entry in read_shards(store, plan):
        for row in ledger_of(store, plan, entry.shard):
            text = ROWS[int(row["document_id"][1:])]["text"]
            expected = None if row["document_id"] in originals else first[text]
            assert row["duplicate_of"] == expected


def test_shards_are_sorted_by_length_over_the_whole_job(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    entries = read_shards(store, plan)
    assert all(a.max_length <= b.min_length for a, b in pairwise(entries))


@pytest.mark.protocol(3)
def test_a_sidecar_describes_the_file_beside_it(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    for entry in read_shards(store, plan):
        content = store.read(plan.layout.shard(entry.shard))
        assert hashlib.sha256(content).hexdigest() == entry.sha256
        assert len(content) == entry.size_bytes
        sidecar = store.read(plan.layout.sidecar(entry.shard))
        assert msgspec.json.decode(sidecar, type=ShardEntry) == entry


def test_without_dedupe_every_document_is_its_own_request(tmp_path: Path) -> None:
    rows = [{"id": f"d{i}", "text": "the same"} for i in range(6)]
    store, plan = small_job(tmp_path, rows, corpus__dedupe="none")
    entries = read_shards(store, plan)
    ids = [r.custom_id for e in entries for r in requests_of(store, plan, e.shard)]
    assert len(set(ids)) == 6
    assert len({name.split("-")[0] for name in ids}) == 1
    rows_seen = [row for e in entries for row in ledger_of(store, plan, e.shard)]
    assert all(row["duplicate_of"] is None for row in rows_seen)


def test_carried_columns_keep_their_types_even_one_named_like_ours(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "text": "one", "line": "L1", "score": 1, "mixed": 1, "flag": True},
        {"id": "b", "text": "two", "line": None, "score": 2.5, "mixed": "x", "flag": None},
    ]
    store, plan = small_job(tmp_path, rows, corpus__carry=["line", "score", "mixed", "flag"])
    found = [r for e in read_shards(store, plan) for r in ledger_of(store, plan, e.shard)]
    by_id = {row["document_id"]: row for row in found}
    assert (by_id["a"]["carry:line"], by_id["b"]["carry:line"]) == ("L1", None)
    assert (by_id["a"]["score"], by_id["b"]["score"]) == (1.0, 2.5)
    assert (by_id["a"]["mixed"], by_id["b"]["mixed"]) == ("1", "x")
    assert (by_id["a"]["flag"], by_id["b"]["flag"]) == (True, None)


@pytest.mark.protocol(3)
def test_two_runs_of_one_job_write_the_same_bytes(tmp_path: Path) -> None:
    write_corpus(tmp_path, ROWS)
    job = make_job(tmp_path, corpus__id="id", shards__max_requests=4)
    for name in ("one", "two"):
        prepare(ScriptedStore(tmp_path / name), job)
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")


@pytest.mark.protocol(3, 8)
@pytest.mark.parametrize("after", [False, True], ids=["put fails", "reply lost"])
def test_a_cut_that_stops_at_any_put_converges_when_run_again(tmp_path: Path, after: bool) -> None:
    store, plan = small_job(tmp_path, ROWS[:12])
    assert store.folder is not None
    whole = snapshot(store.folder)
    cut = [name for name in whole if "/shards/" in name or "/ledger/" in name or "/cut-" in name]
    base = tmp_path / "uncut"
    shutil.copytree(store.folder, base)
    for name in cut:
        (base / name).unlink()
    for fail_at in range(len(cut)):
        folder = tmp_path / f"run-{fail_at}"
        shutil.copytree(base, folder)
        with pytest.raises(StoreUnavailable):
            cut_all(ScriptedStore(folder, fail_at, after=after), plan)
        cut_all(ScriptedStore(folder), plan)
        assert snapshot(folder) == whole
        shutil.rmtree(folder)
