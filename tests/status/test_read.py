"""Reading the status: what the store holds is what is said, and polling is cheap."""

from __future__ import annotations

import io
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardline.plan import Plan
from shardline.rows import Progress, ShardEntry
from shardline.status.read import StatusReader, read_status
from shardline.store import Store, open_store

NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
PLAN = Plan("test-job-all-00000000", {}, None, NOW.isoformat(), "stub", [], [], [], [], [], "0")


class CountingStore(Store):
    """A store that counts what is read."""

    def __init__(self, folder: Path) -> None:
        below = open_store(str(folder))
        super().__init__(below.uri, below._objects, below.folder)
        self.reads: Counter[str] = Counter()

    def _do_read(self, path: str) -> bytes:
        self.reads[path] += 1
        return super()._do_read(path)


def put_shards(store: Store, n: int) -> list[ShardEntry]:
    entries = [ShardEntry(f"shard-00000-{i:03d}", 10, 10, 99, "0" * 64, 1, 2) for i in range(n)]
    buffer = io.BytesIO()
    pq.write_table(
        pa.Table.from_pylist([msgspec.to_builtins(e) for e in reversed(entries)]), buffer
    )
    store.put_same(PLAN.layout.shard_table, buffer.getvalue())
    return entries


def speak(store: Store, shard: str, rows_done: int, attempt: str = "a1") -> str:
    word = Progress(shard, attempt, 1, NOW.isoformat(), "running", 10, rows_done, 0, 1.0, 5.0, 5.0)
    path = PLAN.layout.progress(shard, attempt)
    store.write(path, msgspec.json.encode(word))
    return path


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "root")


def test_a_job_without_shards_is_being_prepared(store: CountingStore) -> None:
    assert not read_status(store, PLAN, NOW).prepared


def test_what_the_store_holds_is_what_is_said(store: CountingStore) -> None:
    entries = put_shards(store, 3)
    speak(store, entries[1].shard, 4)
    store.put_same(PLAN.layout.results(entries[0].shard), b"{}\n")
    status = read_status(store, PLAN, NOW)
    assert (status.shards_done, status.rows_done, status.rows_total) == (1, 14, 30)
    assert [w.shard for w in status.running] == [entries[1].shard]


@pytest.mark.protocol(23)
def test_a_second_poll_reads_only_what_has_changed(store: CountingStore) -> None:
    entries = put_shards(store, 3)
    still, moving = speak(store, entries[0].shard, 4), speak(store, entries[1].shard, 1)
    reader = StatusReader(store, PLAN)
    assert reader.read(NOW).rows_done == 5
    store.reads.clear()
    speak(store, entries[1].shard, 12345678 % 10)
    assert reader.read(NOW).rows_done == 12
    assert store.reads[still] == 0
    assert store.reads[moving] == 1
    assert store.reads[PLAN.layout.shard_table] == 0


def test_a_poll_sees_a_shard_become_done(store: CountingStore) -> None:
    entries = put_shards(store, 1)
    speak(store, entries[0].shard, 4)
    reader = StatusReader(store, PLAN)
    assert not reader.read(NOW).is_done
    store.put_same(PLAN.layout.results(entries[0].shard), b"{}\n")
    assert reader.read(NOW).is_done


@pytest.mark.protocol(23)
def test_last_words_of_done_shards_are_fetched_a_few_at_a_time(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardline.status.read._ENDED_PER_READ", 2)
    entries = put_shards(store, 5)
    paths = [speak(store, e.shard, 10) for e in entries]
    for e in entries:
        store.put_same(PLAN.layout.results(e.shard), b"{}\n")
    reader = StatusReader(store, PLAN)
    fetched = []
    for _ in range(3):
        assert reader.read(NOW).rows_done == 50
        fetched.append(sum(store.reads[p] for p in paths))
    assert fetched == [2, 4, 5]
