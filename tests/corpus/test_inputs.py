"""Which files a corpus is: names are names, nothing is left out in silence, nothing escapes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardline.corpus.inputs import Glob, Listing, fixed_part, list_corpus
from shardline.errors import CorpusError, NotAllowed
from shardline.store import folder_of

ODD_NAMES = ["100%.jsonl", "a b.jsonl", "a%20b.jsonl", "part[1].jsonl", "q?.jsonl", "ü-日.jsonl"]


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}\n")


def sources(listing: Listing) -> list[str]:
    assert listing.problems == []
    return [file.source for file in listing.inputs]


def test_a_folder_is_all_files_below_it_in_the_byte_order_of_their_paths(tmp_path: Path) -> None:
    names = ["Z.csv", "a/b/c.parquet", "a.ndjson", "a-.jsonl.gz", "é.csv.zst", "\U0001f600.jsonl"]
    touch(tmp_path, *names)
    assert sources(list_corpus(str(tmp_path))) == sorted(names, key=str.encode)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_is_a_name_whatever_its_characters(tmp_path: Path, name: str) -> None:
    touch(tmp_path, *ODD_NAMES, "part1.jsonl", "qx.jsonl")
    for uri in (str(tmp_path / name), (tmp_path / name).as_uri()):
        (file,) = list_corpus(uri).inputs
        assert file.source == name
        assert folder_of(file.uri) == tmp_path / name
    assert name in sources(list_corpus(str(tmp_path)))


def test_hidden_files_are_skipped_and_remembered(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl", ".a.jsonl", "_SUCCESS", "_temporary/0/b.jsonl", "d/.x/c.jsonl")
    listing = list_corpus(str(tmp_path))
    assert sources(listing) == ["a.jsonl"]
    assert [(f.source, f.reason) for f in listing.skipped] == [
        (".a.jsonl", "hidden"),
        ("_SUCCESS", "hidden"),
        ("_temporary/0/b.jsonl", "hidden"),
        ("d/.x/c.jsonl", "hidden"),
    ]


def test_a_hidden_folder_above_the_corpus_hides_nothing(tmp_path: Path) -> None:
    touch(tmp_path, "_in/.x/a.jsonl", "_in/_b.jsonl")
    assert sources(list_corpus(str(tmp_path / "_in/.x"))) == ["a.jsonl"]
    assert sources(list_corpus(str(tmp_path / "_in/_b.jsonl"))) == ["_b.jsonl"]


def test_every_file_that_cannot_be_used_is_named_with_its_reason(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl", "README.md", "data.json", "new\nline.jsonl", "tab\t.jsonl")
    (tmp_path / "lost.jsonl").symlink_to(tmp_path / "nowhere")
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl"))).write_bytes(b"")
    listing = list_corpus(str(tmp_path))
    assert [f.source for f in listing.inputs] == ["a.jsonl"]
    assert {(p.source.encode("utf-8", "replace"), p.reason) for p in listing.problems} == {
        (b"README.md", "unknown_format"),
        (b"data.json", "unknown_format"),
        (b"new\nline.jsonl", "bad_name"),
        (b"tab\t.jsonl", "bad_name"),
        (b"lost.jsonl", "vanished"),
        (b"?.jsonl", "bad_name"),
    }
    assert any(str(p) == "new\\nline.jsonl: bad_name" for p in listing.problems)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.jsonl", ["a.jsonl", "b.jsonl"]),
        ("?.jsonl", ["a.jsonl", "b.jsonl"]),
        ("**/*.jsonl", ["a.jsonl", "b.jsonl", "d/c.jsonl", "d/e/f.jsonl"]),
        ("**/f.*", ["d/e/f.jsonl"]),
        ("d/**", ["c.jsonl", "e/f.jsonl", "x.csv"]),
        ("d*/*.jsonl", ["d/c.jsonl"]),
        ("d*", ["d/c.jsonl", "d/e/f.jsonl", "d/x.csv"]),
        ("d*/", ["d/c.jsonl", "d/e/f.jsonl", "d/x.csv"]),
    ],
)
def test_a_glob_takes_the_files_that_match(
    tmp_path: Path, pattern: str, expected: list[str]
) -> None:
    touch(tmp_path, "a.jsonl", "b.jsonl", "d/c.jsonl", "d/x.csv", "d/e/f.jsonl", "n/y.txt")
    assert sources(list_corpus(f"{tmp_path}/{pattern}")) == expected


def test_a_path_that_exists_is_no_glob(tmp_path: Path) -> None:
    touch(tmp_path, "*.jsonl", "a.jsonl", "d?/x.jsonl", "dd/y.jsonl")
    assert sources(list_corpus(f"{tmp_path}/*.jsonl")) == ["*.jsonl"]
    assert sources(list_corpus(f"{tmp_path}/d?")) == ["x.jsonl"]


def test_brackets_are_no_wildcards(tmp_path: Path) -> None:
    touch(tmp_path, "part[1]-a.jsonl", "part1-a.jsonl")
    assert sources(list_corpus(f"{tmp_path}/part[1]-*.jsonl")) == ["part[1]-a.jsonl"]


def test_a_glob_does_not_enter_folders_that_cannot_match() -> None:
    glob = Glob(("d*", "*.jsonl"))
    assert glob.may_hold("d1")
    assert not glob.may_hold("e")
    assert not glob.may_hold("d1/sub")
    assert Glob(("**", "x.jsonl")).may_hold("any/where")
    assert fixed_part("/a/b/c*/d") == "/a/b"


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    touch(tmp_path, "real/a.jsonl", "corpus/b.jsonl")
    (tmp_path / "corpus/link").symlink_to(tmp_path / "real")
    (tmp_path / "corpus/c.jsonl").symlink_to(tmp_path / "real/a.jsonl")
    (tmp_path / "real/up").symlink_to(tmp_path / "corpus")
    assert sources(list_corpus(str(tmp_path / "corpus"))) == ["b.jsonl", "c.jsonl", "link/a.jsonl"]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("nowhere", "no such file or folder"),
        ("empty", "there is no data file"),
        ("hidden", r"there is no data file \(1 skipped\)"),
        ("hidden/*.csv", "no file matches"),
        ("nowhere/*.jsonl", "no such folder as"),
        ("gs://bucket/x", "expected a path"),
        ("file://relative/x", "expected a path"),
    ],
)
def test_a_corpus_of_nothing_is_one_clear_error(tmp_path: Path, uri: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    touch(tmp_path, "hidden/.a.jsonl")
    with pytest.raises(CorpusError, match=message) as caught:
        list_corpus(uri if "://" in uri else f"{tmp_path}/{uri}")
    assert "\n" not in str(caught.value)


@pytest.mark.protocol(24)
def test_a_corpus_must_lie_in_what_is_allowed(tmp_path: Path) -> None:
    touch(tmp_path, "in/a.jsonl", "in-secret/b.jsonl", "out/c.jsonl")
    allowed = [(tmp_path / "in").as_uri(), "s3://lake/tickets"]
    assert sources(list_corpus(str(tmp_path / "in"), allowed)) == ["a.jsonl"]
    (tmp_path / "in/away").symlink_to(tmp_path / "out")
    outside = [
        str(tmp_path / "in-secret"),
        f"{tmp_path}/in/../out",
        f"{tmp_path}/in/away",
        f"{tmp_path}/in",
        f"{tmp_path}/*/a.jsonl",
        "s3://lake/tickets-secret/a.jsonl",
        "s3://lake/tickets/../other",
        "s3://other/tickets",
    ]
    for uri in outside:
        with pytest.raises(NotAllowed):
            list_corpus(uri, allowed)


def test_a_link_within_what_is_allowed_may_be_followed(tmp_path: Path) -> None:
    touch(tmp_path, "in/real/a.jsonl")
    (tmp_path / "in/link").symlink_to(tmp_path / "in/real")
    assert sources(list_corpus(str(tmp_path / "in/link"), [str(tmp_path / "in")])) == ["a.jsonl"]
