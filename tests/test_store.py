"""The store keeps its two promises: one winner for each name, and a name only for bytes on disk."""

from __future__ import annotations

import errno
import multiprocessing
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from obstore import exceptions as obstore_errors
from obstore.store import MemoryStore

from shardline.errors import (
    ObjectConflict,
    ObjectNotFound,
    SickMachine,
    StoreRefused,
    StoreUnavailable,
)
from shardline.store import Put, Store, folder_of, open_store
from tests.s3_server import s3_server


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, str]]:
    with s3_server() as env:
        client = boto3.client(
            "s3",
            endpoint_url=env["AWS_ENDPOINT_URL"],
            aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
            region_name=env["AWS_REGION"],
        )
        client.create_bucket(Bucket="store")
        client.close()
        yield env


@pytest.fixture(params=["disk", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "memory":
        return open_store("memory://")
    if request.param == "disk":
        return open_store(str(tmp_path / "root"))
    for name, value in request.getfixturevalue("s3").items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://store/{tmp_path.name}")


# what every store does alike


@pytest.mark.protocol(8)
def test_the_first_put_wins_and_the_second_is_told_which_case_it_is(store: Store) -> None:
    assert store.put_once("a/b.json", b"one") is Put.CREATED
    assert store.put_once("a/b.json", b"one") is Put.SAME
    assert store.put_once("a/b.json", b"two") is Put.TAKEN
    assert store.put_once("a/b.json", b"longer than one") is Put.TAKEN
    assert store.read("a/b.json") == b"one"


def test_a_put_that_everybody_makes_alike_refuses_other_bytes(store: Store) -> None:
    store.put_same("a", b"x")
    store.put_same("a", b"x")
    with pytest.raises(ObjectConflict, match="a: exists with other content"):
        store.put_same("a", b"y")


def test_a_file_is_put_as_its_bytes_would_be(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_bytes(b"0123456789" * 1000)
    assert store.put_once("f", path) is Put.CREATED
    assert store.put_once("f", path) is Put.SAME
    store.write("g", path)
    assert store.read("f") == store.read("g") == path.read_bytes()


def test_a_write_replaces(store: Store) -> None:
    store.write("w", b"one")
    store.write("w", b"two")
    assert store.read("w") == b"two"


def test_ranges_exclude_their_end_and_may_be_empty(store: Store) -> None:
    store.put_same("r", b"0123456789")
    assert store.read_range("r", 2, 5) == b"234"
    assert store.read_range("r", 0, 10) == b"0123456789"
    assert store.read_range("r", 3, 3) == b""


def test_what_is_missing_is_an_answer_or_an_error_as_the_caller_asks(
    store: Store, tmp_path: Path
) -> None:
    assert store.read_or_none("no") is None
    assert store.info("no") is None
    assert not store.exists("no")
    store.delete("no")
    for ask in (
        lambda: store.read("no"),
        lambda: store.read_range("no", 0, 1),
        lambda: store.fetch("no", tmp_path),
    ):
        with pytest.raises(ObjectNotFound, match="no: no such object"):
            ask()


def test_a_listing_is_sorted_and_stays_below_its_folder(store: Store) -> None:
    for name in ("seg/b.jsonl", "seg/a.jsonl", "seg/sub/c.jsonl", "segment.jsonl", "other/x"):
        store.put_same(name, b"x")
    assert [found.path for found in store.list("seg/")] == [
        "seg/a.jsonl",
        "seg/b.jsonl",
        "seg/sub/c.jsonl",
    ]
    assert [f.path for f in store.list("seg/", "seg/a.jsonl")] == ["seg/b.jsonl", "seg/sub/c.jsonl"]
    assert list(store.list("nothing/")) == []
    assert len(list(store.list(""))) == 5


def test_info_knows_the_size(store: Store) -> None:
    store.put_same("i", b"12345")
    found = store.info("i")
    assert found is not None
    assert (found.path, found.size_bytes) == ("i", 5)


def test_fetch_gives_a_file_with_the_bytes(store: Store, tmp_path: Path) -> None:
    store.put_same("a/b", b"content")
    assert store.fetch("a/b", tmp_path).read_bytes() == b"content"


def test_a_deleted_name_is_free_again(store: Store) -> None:
    store.put_same("d", b"one")
    store.delete("d")
    assert store.put_once("d", b"two") is Put.CREATED


def test_an_empty_object_is_an_object(store: Store) -> None:
    assert store.put_once("e", b"") is Put.CREATED
    assert store.put_once("e", b"") is Put.SAME
    assert store.read("e") == b""


# disk


@pytest.mark.protocol(23)
def test_bytes_are_on_disk_before_their_name_and_the_name_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PROTOCOL 23. After a power cut between any two of these steps the object is whole or absent."""
    steps: list[str] = []
    fsync, link, replace = os.fsync, os.link, Path.replace

    def see_fsync(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        size = os.fstat(descriptor).st_size
        steps.append(f"fsync {kind}" + (f" of {size} bytes" if kind == "file" else ""))
        fsync(descriptor)

    def see_link(source: Any, target: Any, **kwargs: Any) -> None:
        steps.append("name")
        link(source, target, **kwargs)

    def see_replace(self: Path, target: Path) -> Path:
        steps.append("name")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", see_fsync)
    monkeypatch.setattr(os, "link", see_link)
    monkeypatch.setattr(Path, "replace", see_replace)
    store = open_store(str(tmp_path / "root"))
    store.put_once("results/other.jsonl", b"")
    for put in (store.put_once, store.write):
        steps.clear()
        put("results/one.jsonl", b"12345")  # type: ignore[operator]
        assert steps[:3] == ["fsync file of 5 bytes", "name", "fsync folder"]
        store.delete("results/one.jsonl")


def test_a_torn_file_is_no_object(tmp_path: Path) -> None:
    """What a killed writer leaves has a name that no listing shows and no put meets."""
    store = open_store(str(tmp_path / "root"))
    store.put_same("a/whole", b"x")
    (tmp_path / "root/a/torn.0123456789ab#1").write_bytes(b"half")
    assert [found.path for found in store.list("a/")] == ["a/whole"]
    assert store.put_once("a/torn", b"whole") is Put.CREATED


def test_nothing_is_left_behind_by_winners_and_losers(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "root"))
    store.put_once("a", b"1")
    store.put_once("a", b"2")
    store.write("a", b"3")
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["a"]


@pytest.mark.protocol(23)
def test_a_writer_killed_in_the_middle_leaves_no_object(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from shardline.store import open_store
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
open_store(sys.argv[1]).put_once("results/one", b"x" * 1000)
"""
    root = str(tmp_path / "root")
    ended = subprocess.run([sys.executable, "-c", program, root], check=False)
    assert ended.returncode == -9
    store = open_store(root)
    assert list(store.list("")) == []
    assert store.put_once("results/one", b"y") is Put.CREATED


def test_fetch_on_disk_copies_nothing(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "root"))
    store.put_same("a/b", b"x")
    assert store.fetch("a/b", tmp_path) == tmp_path / "root/a/b"


def test_a_disk_without_room_for_a_copy_is_not_the_store_s_fault(tmp_path: Path) -> None:
    store = open_store("memory://full")
    store.put_same("a/b", b"x" * (1 << 20))
    (tmp_path / "a~b").symlink_to("/dev/full")
    with pytest.raises(SickMachine, match=r"a~b: No space left on device"):
        store.fetch("a/b", tmp_path)
    with pytest.raises(ObjectNotFound, match="a/c"):
        store.fetch("a/c", tmp_path)


def test_a_root_that_cannot_be_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreRefused, match="cannot make this folder"):
        open_store(str(tmp_path / "file" / "root"))
    with pytest.raises(
        StoreRefused, match=r"ftp://host: a root is a folder, file:///folder or s3:"
    ):
        open_store("ftp://host")


def test_a_root_may_have_spaces_and_percent_signs(tmp_path: Path) -> None:
    folder = tmp_path / "a b%20c"
    store = open_store(str(folder))
    store.put_same("x", b"1")
    assert open_store(store.uri).read("x") == b"1"
    assert folder_of(store.uri) == folder


# races


def put_from_process(arguments: tuple[str, str, int, Any]) -> str:
    root, name, number, barrier = arguments
    store = open_store(root)
    barrier.wait()
    return store.put_once(name, f"writer {number}".encode()).value


def race(root: str, writers: int = 8) -> list[str]:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, context.Pool(writers) as pool:
        barrier = manager.Barrier(writers)
        return pool.map(
            put_from_process, [(root, "one", n, barrier) for n in range(writers)], chunksize=1
        )


@pytest.mark.protocol(8)
@pytest.mark.slow
@pytest.mark.parametrize("where", ["disk", "s3"])
def test_of_many_processes_that_put_one_name_one_wins(
    where: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(tmp_path / "root")
    if where == "s3":
        for name, value in request.getfixturevalue("s3").items():
            monkeypatch.setenv(name, value)
        root = f"s3://store/{tmp_path.name}"
    said = race(root)
    assert sorted(said) == ["created"] + ["taken"] * 7
    winner = said.index("created")
    assert open_store(root).read("one") == f"writer {winner}".encode()


# scripted faults: below the methods `_do_*` everything is the code that runs in production


class Faulty(Store):
    """Raises what it is told, before or after the real operation."""

    def __init__(self, error: Exception, *, after: bool = False) -> None:
        super().__init__("memory://", MemoryStore())
        self.error: Exception | None = error
        self.after = after

    def _do_create(self, path: str, content: bytes | Path) -> bool:
        error, self.error = self.error, None
        if error is not None and not self.after:
            raise error
        done = super()._do_create(path, content)
        if error is not None:
            raise error
        return done

    def _do_read(self, path: str) -> bytes:
        if self.error is not None:
            raise self.error
        return super()._do_read(path)


LOST = obstore_errors.GenericError("connection closed before message completed")


@pytest.mark.protocol(8)
def test_a_put_whose_reply_was_lost_is_found_to_be_ours_by_its_bytes() -> None:
    store = Faulty(LOST, after=True)
    with pytest.raises(StoreUnavailable, match="a: connection closed"):
        store.put_once("a", b"mine")
    assert store.put_once("a", b"mine") is Put.SAME
    assert store.put_once("a", b"other") is Put.TAKEN


def test_a_put_that_failed_leaves_the_name_free() -> None:
    store = Faulty(LOST)
    with pytest.raises(StoreUnavailable):
        store.put_once("a", b"mine")
    assert store.put_once("a", b"other") is Put.CREATED


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), StoreUnavailable),
        (OSError(errno.ESTALE, "Stale file handle"), StoreUnavailable),
        (ConnectionResetError("reset"), StoreUnavailable),
        (obstore_errors.GenericError("503 SlowDown"), StoreUnavailable),
        (obstore_errors.PermissionDeniedError("403"), StoreRefused),
        (obstore_errors.UnauthenticatedError("401"), StoreRefused),
        (PermissionError(errno.EACCES, "Permission denied"), StoreRefused),
        (FileNotFoundError("gone"), ObjectNotFound),
    ],
)
def test_the_class_of_an_error_says_whether_to_try_again(
    error: Exception, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as raised:
        Faulty(error).read("jobs/j/plan.json")
    assert type(raised.value) is kind
    assert str(raised.value).startswith("jobs/j/plan.json: ")
    assert "\n" not in str(raised.value)


def test_an_error_in_the_body_of_a_listing_loop_is_not_the_stores() -> None:
    store = open_store("memory://")
    store.put_same("a/1", b"")

    def fail(_: object) -> None:
        raise OSError("mine")

    with pytest.raises(OSError, match=r"^mine$"):
        list(map(fail, store.list("a/")))


@pytest.mark.slow
def test_a_bucket_that_is_not_there_is_no_missing_object(
    s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreRefused, match="there is no such bucket"):
        open_store("s3://no-such-bucket/x").read_or_none("a")


@pytest.mark.slow
@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.put_once("a", b"1"),
        lambda store: store.read("a"),
        lambda store: store.exists("a"),
        lambda store: list(store.list("")),
        lambda store: store.folders(""),
    ],
    ids=["put", "read", "head", "list", "folders"],
)
def test_a_wrong_key_is_refused(
    s3: dict[str, str], monkeypatch: pytest.MonkeyPatch, ask: Callable[[Store], object]
) -> None:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreRefused):
        ask(open_store("s3://store/x"))


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "AuthorizationHeaderMalformed", StoreRefused),  # the region is another
        (301, "PermanentRedirect", StoreRefused),  # so, too
        (400, "ExpiredToken", StoreRefused),
        (400, "InvalidToken", StoreRefused),
        (400, "RequestTimeout", StoreUnavailable),
    ],
)
@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.write("a", b"1"),
        lambda store: store.read("a"),
        lambda store: list(store.list("")),
    ],
    ids=["put", "read", "list"],
)
def test_s3_says_by_its_own_codes_that_no_patience_helps(
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[Store], object],
    status: int,
    code: str,
    kind: type[Exception],
) -> None:
    answer = f"<?xml version='1.0'?>\n<Error><Code>{code}</Code></Error>".encode()

    class Refusal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_PUT = do_GET  # noqa: N815 - the library's names

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(kind) as raised:
                ask(open_store("s3://bucket/prefix"))
        finally:
            server.shutdown()
            thread.join()
    assert type(raised.value) is kind


def test_a_client_that_cannot_work_here_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_UNSIGNED_PAYLOAD", "maybe")
    with pytest.raises(StoreRefused, match=r"^s3://bucket/prefix: .*boolean") as refused:
        open_store("s3://bucket/prefix")
    assert "\n" not in str(refused.value)
