"""Weights come whole or not at all, and what an earlier start has fetched does not come again."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from shardline.errors import ObjectNotFound, SickMachine, StoreUnavailable
from shardline.store import Store
from shardline.weights.fetch import Progress, fetch_files
from shardline.weights.listing import WeightFile, hash_listing, judge_weights


class CountingStore(Store):
    """A store in memory that counts bytes read, and may spoil the first reads of a file."""

    def __init__(self) -> None:
        super().__init__("memory://weights", MemoryStore())
        self.read_bytes: Counter[str] = Counter()
        self.spoiled: Counter[str] = Counter()

    def _do_read_range(self, path: str, start: int, end: int) -> bytes:
        self.read_bytes[path] += end - start
        content = super()._do_read_range(path, start, end)
        if self.spoiled[path]:
            self.spoiled[path] -= 1
            return bytes(len(content))
        return content


@pytest.fixture
def store() -> CountingStore:
    store = CountingStore()
    store.write("config.json", b"{}")
    store.write("model-1.safetensors", b"one" * 1000)
    store.write("sub/model-2.safetensors", b"two" * 1000)
    return store


def files_of(store: Store) -> list[WeightFile]:
    """The listing as S3 gives it: the ETag of a small object is its MD5."""
    return [
        file._replace(e_tag=hashlib.md5(store.read(file.name)).hexdigest())
        for file in judge_weights(store.list(""))
    ]


def contents(folder: Path) -> dict[str, bytes]:
    found = (p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found}


def test_every_file_comes_under_its_name(store: CountingStore, tmp_path: Path) -> None:
    fetch_files(store, files_of(store), tmp_path / "model")
    assert contents(tmp_path / "model") == {
        "config.json": b"{}",
        "model-1.safetensors": b"one" * 1000,
        "sub/model-2.safetensors": b"two" * 1000,
    }


def test_a_second_start_goes_on_from_the_last_byte(store: CountingStore, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"{}")
    (tmp_path / "model-1.safetensors.part").write_bytes((b"one" * 1000)[:2_900])
    fetch_files(store, files_of(store), tmp_path)
    assert store.read_bytes == {"model-1.safetensors": 100, "sub/model-2.safetensors": 3_000}
    assert (tmp_path / "model-1.safetensors").read_bytes() == b"one" * 1000
    assert not list(tmp_path.rglob("*.part"))


def test_a_part_with_wrong_bytes_comes_again(store: CountingStore, tmp_path: Path) -> None:
    (tmp_path / "model-1.safetensors.part").write_bytes(b"x" * 2_900)
    fetch_files(store, files_of(store), tmp_path)
    assert (tmp_path / "model-1.safetensors").read_bytes() == b"one" * 1000
    assert store.read_bytes["model-1.safetensors"] == 100 + 3_000


def test_a_damaged_start_does_not_pass_for_a_bucket_without_checksums(
    store: CountingStore, tmp_path: Path
) -> None:
    (tmp_path / "config.json.part").write_bytes(b"\0\0")
    store.spoiled["model-1.safetensors"] = 1
    fetch_files(store, files_of(store), tmp_path)
    assert (tmp_path / "config.json").read_bytes() == b"{}"
    assert (tmp_path / "model-1.safetensors").read_bytes() == b"one" * 1000


def test_wrong_bytes_twice_are_an_error_and_no_file(store: CountingStore, tmp_path: Path) -> None:
    store.spoiled["model-1.safetensors"] = 2
    with pytest.raises(StoreUnavailable, match=r"model-1.safetensors: came with other bytes"):
        fetch_files(store, files_of(store), tmp_path)
    assert not (tmp_path / "model-1.safetensors").exists()


def test_a_bucket_whose_etags_are_no_checksums_is_taken_at_its_word(
    store: CountingStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = [file._replace(e_tag=hashlib.md5(b"key").hexdigest()) for file in files_of(store)]
    fetch_files(store, files, tmp_path)
    assert len(contents(tmp_path)) == 3
    assert "its ETags are no checksums" in caplog.text


def test_a_file_that_is_gone_ends_the_fetch(store: CountingStore, tmp_path: Path) -> None:
    files = files_of(store)
    store.delete("model-1.safetensors")
    with pytest.raises(ObjectNotFound):
        fetch_files(store, files, tmp_path)


def test_a_disk_that_is_too_small_is_found_before_the_first_byte(
    store: CountingStore, tmp_path: Path
) -> None:
    files = [*files_of(store), WeightFile("huge.safetensors", 1 << 60, "0" * 32)]
    with pytest.raises(SickMachine, match=r"needs 1152921504\.6 GB more"):
        fetch_files(store, files, tmp_path)
    assert not store.read_bytes


def test_a_disk_that_fills_up_meanwhile_is_the_machine_s_fault(
    store: CountingStore, tmp_path: Path
) -> None:
    (tmp_path / "model-1.safetensors.part").symlink_to("/dev/full")
    with pytest.raises(SickMachine, match=r"model-1.safetensors.part: No space left on device"):
        fetch_files(store, files_of(store), tmp_path)


def test_hidden_files_and_markers_are_no_weights(store: CountingStore) -> None:
    store.write(".cache/x", b"1")
    store.write("sub/.part", b"1")
    store.write("marker", b"")
    names = [file.name for file in judge_weights(store.list(""))]
    assert names == ["config.json", "model-1.safetensors", "sub/model-2.safetensors"]


def test_the_hash_of_a_listing_is_of_names_sizes_and_etags(store: CountingStore) -> None:
    files = files_of(store)
    first = hash_listing(files)
    assert first == hash_listing(reversed(files))
    changed = [
        files[0]._replace(name="other"),
        files[0]._replace(size_bytes=3),
        files[0]._replace(e_tag="0"),
    ]
    assert len({first, *(hash_listing([file, *files[1:]]) for file in changed)}) == 4


def test_progress_is_told_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = [0.0]
    progress = Progress("weights x", 4_000_000_000, clock=lambda: now[0])
    progress.keep(1_000_000_000)
    for now[0] in (4.0, 9.9, 10.0, 12.0):
        progress.add(500_000_000)
    assert caplog.messages == ["weights x: 2.50 of 4.00 GB, 150 MB/s"]
