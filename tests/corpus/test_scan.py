"""scan_corpus: every row is a document or rejected, the same on every try and any split."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardline.corpus import pieces, scan
from shardline.corpus.ids import check_ids
from shardline.corpus.requests import BodyRenderer, fingerprint_of, request_line
from shardline.corpus.scan import scan_corpus, scan_good_files
from shardline.corpus.sources import opened
from shardline.errors import CorpusError
from shardline.plan import InputFile
from tests.corpus.prepared import make_plan, prepare
from tests.factories import make_job, make_rows, make_store, write_corpus

ROWS = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["a", "b", "c", 1, "1", None, 1.5]),
        "text": st.sampled_from(["x", "y", "longer text", "", None, 7, "é"]),
        "tag": st.sampled_from([None, 1, 2.5, "t", [1], True]),
    }
)


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("plan")
    }


@pytest.mark.protocol(5)
@given(
    files=st.lists(st.lists(ROWS, max_size=8), min_size=1, max_size=4),
    cuts=st.sets(st.integers(1, 3)),
    bounds=st.sets(st.tuples(st.integers(85, 100), st.sampled_from(["40000000", "c0000000"]))),
    sample=st.sampled_from([None, 1, 3]),
    has_id=st.booleans(),
)
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
def test_splits_and_buckets_change_no_outcome(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[dict[str, Any]]],
    cuts: set[int],
    bounds: set[tuple[int, str]],
    sample: int | None,
    has_id: bool,
) -> None:
    folder = tmp_path_factory.mktemp("job")
    for n, rows in enumerate(files):
        write_corpus(folder, rows, f"{n}.jsonl")
    job: dict[str, Any] = {"corpus__carry": ["tag"], "corpus__id": "id" if has_id else None}
    if sample:
        job["corpus__sample"] = {"rows": sample}
    edges = [0, *sorted(c for c in cuts if c < len(files)), len(files)]
    splits = list(itertools.pairwise(edges))
    try:
        whole = prepare(folder, **job).outcome()
    except CorpusError as error:
        with pytest.raises(CorpusError, match="is a document"):
            prepare(folder, splits=splits, bounds=sorted(bounds), **job)
        assert "is a document" in str(error)  # noqa: PT017
        return
    cut = prepare(folder, splits=splits, bounds=sorted(bounds), **job)
    assert cut.outcome() == whole
    report = cut.report
    assert report.rows_read == sum(map(len, files))
    assert report.rows_read == report.documents + report.rejected + report.left_out
    assert len(cut.documents()) == report.documents
    assert len(cut.rejected()) == report.rejected


@pytest.mark.protocol(5)
def test_a_retried_scan_writes_the_same_bytes(tmp_path: Path) -> None:
    write_corpus(tmp_path, [*make_rows(50), {"text": None}, *make_rows(20)])
    plan = make_plan(tmp_path, corpus__id="id", bounds=[(86, "80000000")])
    seen = []
    for attempt in ("first", "second"):
        store = make_store(tmp_path / attempt)
        scan_corpus(store, plan, 0)
        seen.append(files_below(tmp_path / attempt))
    assert seen[0] == seen[1]
    assert len(seen[0]) == 4
    assert scan_corpus(store, plan, 0).rows_read == 71


@pytest.mark.protocol(5)
def test_a_scan_that_was_killed_half_way_is_done_again(tmp_path: Path) -> None:
    write_corpus(tmp_path, make_rows(5))
    store, plan = make_store(tmp_path), make_plan(tmp_path)
    report = scan_corpus(store, plan, 0)
    store.delete(plan.layout.scan_report(0))
    store.delete(plan.layout.rejected(0))
    assert scan_corpus(store, plan, 0) == report


def test_a_spill_larger_than_memory_and_pieces_is_the_same_spill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path, make_rows(200))
    bounds = [(84, "80000000"), (85, "80000000"), (86, "40000000"), (86, "80000000")]
    roomy = prepare(tmp_path, bounds=bounds, corpus__id="id").outcome()
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1_000)
    monkeypatch.setattr(pieces.BucketWriter.__init__, "__defaults__", (500,))
    tight = prepare(tmp_path, bounds=bounds, corpus__id="id", rerun=1)
    assert len(list(tight.store.list(f"{tight.layout.prefix}spill/"))) > 20
    assert tight.outcome()[:2] == roomy[:2]


def test_a_repeat_within_a_split_has_no_body_and_one_of_another_split_has(tmp_path: Path) -> None:
    write_corpus(tmp_path, [{"text": "x"}, {"text": "x"}], "0.jsonl")
    write_corpus(tmp_path, [{"text": "x"}], "1.jsonl")
    documents = prepare(tmp_path, splits=[(0, 1), (1, 2)]).documents()
    assert [d.body is None for d in documents] == [False, True, False]
    assert fingerprint_of(documents[0].body or b"") == documents[1].fingerprint
    each = prepare(tmp_path, corpus__dedupe="none").documents()
    assert all(d.body for d in each)


def test_the_body_of_a_rejected_row_is_handed_on_to_its_repeat(tmp_path: Path) -> None:
    rows = [("a", "x"), ("a", "y"), ("b", "y"), ("c", "y")]
    write_corpus(tmp_path, [{"id": i, "text": t} for i, t in rows])
    documents = prepare(tmp_path, corpus__id="id").documents()
    assert [(d.document_id, d.body is None) for d in documents] == [
        ("a", False),
        ("b", False),
        ("c", True),
    ]


def test_a_document_without_an_id_column_is_named_by_its_place(tmp_path: Path) -> None:
    write_corpus(tmp_path, make_rows(2), "d/a.jsonl")
    assert [d.document_id for d in prepare(tmp_path).documents()] == ["d/a.jsonl:1", "d/a.jsonl:2"]


def test_two_columns_make_one_document(tmp_path: Path) -> None:
    rows: Sequence[dict[str, Any]] = [
        {"a": "x", "m": {"b": 5}},
        {"a": " ", "m": {"b": "y"}},
        {"a": " ", "m": {"b": ""}},
        {"a": "x", "m": {}},
        {"a": "x", "m": {"b": True}},
        {"a": "xxx", "m": {"b": "yyyy"}},
    ]
    write_corpus(tmp_path, rows)
    messages = [{"role": "user", "content": "{{ a }}\n{{ m.b }}"}]
    found = prepare(tmp_path, messages=messages, limits__max_text_bytes=6)
    assert [d.row for d in found.documents()] == [1, 2]
    assert [(row, reason) for _, row, reason in found.rejected()] == [
        (3, "empty_text"),
        (4, "no_text"),
        (5, "text_not_string"),
        (6, "text_too_long"),
    ]


def test_a_request_that_fits_in_no_shard_is_rejected(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    beside = len(request_line(job, BodyRenderer(job).render([""]), "0" * 32))
    texts = ["x" * (n - beside) for n in (999, 1_000, 1_001, 2_500)]
    write_corpus(tmp_path, [{"text": text} for text in texts])
    found = prepare(tmp_path, shards__max_bytes=1_000)
    assert [(row, reason) for _, row, reason in found.rejected()] == [
        (3, "request_too_long"),
        (4, "request_too_long"),
    ]


def test_the_kinds_of_all_splits_make_the_published_types(tmp_path: Path) -> None:
    write_corpus(tmp_path, [{"text": "x", "a": 1, "b": 1, "c": True}], "0.jsonl")
    write_corpus(tmp_path, [{"text": "y", "a": 2.5, "b": "s"}], "1.jsonl")
    report = prepare(tmp_path, splits=[(0, 1), (1, 2)], corpus__carry=["a", "b", "c", "d"]).report
    assert report.carry_types == {"a": "double", "b": "string", "c": "bool", "d": "string"}


def test_all_files_that_cannot_be_read_are_named_and_nothing_of_them_counts(tmp_path: Path) -> None:
    write_corpus(tmp_path, [{"text": "x"}], "a.jsonl")
    folder = tmp_path / "corpus"
    (folder / "b.jsonl").write_bytes(b"\x1f\x8b packed")
    (folder / "c.csv").write_bytes(b"other\nx\n")
    (folder / "d.jsonl").write_bytes(b'{"text":"x"}\n')
    store, plan = make_store(tmp_path), make_plan(tmp_path)
    with pytest.raises(CorpusError) as caught:
        scan_corpus(store, plan, 0)
    named = [(p.source, p.reason) for p in caught.value.problems]
    assert named == [("b.jsonl", "wrong_format"), ("c.csv", "missing_column")]
    assert not store.exists(plan.layout.scan_report(0))
    report = scan_good_files(store, plan, 0)
    assert [f.outcome for f in report.files] == ["read", "error", "error", "read"]
    assert (report.rows_read, report.documents) == (2, 2)


@pytest.mark.protocol(1)
def test_a_file_that_changed_or_vanished_since_the_plan_is_an_error(tmp_path: Path) -> None:
    changed = write_corpus(tmp_path, make_rows(2), "a.jsonl")
    vanished = write_corpus(tmp_path, make_rows(2), "b.jsonl")
    plan = make_plan(tmp_path)
    changed.write_bytes(changed.read_bytes() + b"{}\n")
    vanished.unlink()
    with pytest.raises(CorpusError) as caught:
        scan_corpus(make_store(tmp_path), plan, 0)
    assert [p.reason for p in caught.value.problems] == ["changed", "vanished"]


@pytest.mark.protocol(1)
@pytest.mark.parametrize("change", ["changed", "vanished"])
def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, change: str) -> None:
    path = write_corpus(tmp_path, make_rows(2))
    (file,) = make_plan(tmp_path).inputs

    def read(file: InputFile) -> None:
        with opened(file) as stream:
            stream.read()
            path.unlink()
            if change == "changed":
                path.write_bytes(b"{}\n")

    with pytest.raises(scan.UnreadableFile) as caught:
        read(file)
    assert caught.value.reason == change


@pytest.mark.protocol(5)
def test_two_that_scan_one_split_at_once_both_succeed_alike(tmp_path: Path) -> None:
    write_corpus(tmp_path, [*make_rows(300), {"text": None}])
    plan = make_plan(tmp_path, corpus__id="id")
    store = make_store(tmp_path)
    with ThreadPoolExecutor(4) as racers:
        reports = list(racers.map(lambda _: scan_corpus(store, plan, 0), range(4)))
    assert all(report == reports[0] for report in reports)
    assert check_ids(store, plan).documents == 300
