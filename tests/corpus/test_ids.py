"""check_ids: one id, one text; the sample; and the limits of what may be rejected."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from blake3 import blake3

from shardline.corpus import records
from shardline.corpus.ids import check_ids
from shardline.corpus.scan import scan_corpus
from shardline.errors import CorpusError, JobNotReady, LimitExceeded
from tests.corpus.prepared import make_plan, prepare
from tests.factories import make_rows, make_store, write_corpus


def write(folder: Path, name: str, *rows: tuple[object, str]) -> None:
    write_corpus(folder, [{"id": i, "text": t} for i, t in rows], name)


@pytest.mark.protocol(5)
def test_the_first_row_in_order_has_the_id_across_files_and_splits(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", ("1", "x"), ("2", "y"))
    write(tmp_path, "b.jsonl", ("2", "other"), (1, "x"), ("3", "z"))
    write(tmp_path, "c.jsonl", ("2", "other"), ("3", "z"), (1, "more"))
    found = prepare(tmp_path, corpus__id="id", splits=[(0, 1), (1, 2), (2, 3)])
    assert found.rejected() == [
        ("b.jsonl", 1, "id_conflict"),
        ("c.jsonl", 1, "id_conflict"),
        ("c.jsonl", 3, "id_conflict"),
    ]
    assert found.report.conflicts == 3
    assert [(d.source, d.row) for d in found.documents()] == [
        ("a.jsonl", 1),
        ("a.jsonl", 2),
        ("b.jsonl", 2),
        ("b.jsonl", 3),
        ("c.jsonl", 2),
    ]


def test_a_rejected_row_holds_no_id(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", ("1", ""), ("1", "x"))
    assert prepare(tmp_path, corpus__id="id").rejected() == [("a.jsonl", 1, "empty_text")]


def test_ids_in_many_partitions_give_the_same_conflicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a.jsonl", *[(n, "x") for n in range(200)])
    write(tmp_path, "b.jsonl", *[(n, "x" if n % 3 else "y") for n in range(200)])
    job = {"corpus__id": "id", "corpus__sample": {"rows": 150}}
    one = prepare(tmp_path, **job).outcome()
    monkeypatch.setattr(records, "_ID_PARTITION_BYTES", 100)
    assert records.id_partitions(make_plan(tmp_path, rerun=1, **job)) > 50
    assert prepare(tmp_path, rerun=1, **job).outcome() == one
    assert len(one[1]) == 67


@pytest.mark.parametrize("has_id", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_sample_is_the_documents_with_the_smallest_hashes(
    tmp_path: Path, has_id: bool, seed: int
) -> None:
    for name, start in (("a.jsonl", 0), ("b.jsonl", 300), ("c.jsonl", 600)):
        write_corpus(tmp_path, [*make_rows(300, start), {"text": None}], name)
    job = {"corpus__id": "id" if has_id else None, "corpus__sample": {"rows": 50, "seed": seed}}
    found = prepare(tmp_path, splits=[(0, 1), (1, 3)], **job)
    taken = {(d.source, d.row) for d in found.documents()}
    keys = {
        (source, row): blake3(f"{seed}\0{source}\0{row}".encode()).digest(16)
        for source, row in itertools.product(("a.jsonl", "b.jsonl", "c.jsonl"), range(1, 301))
    }
    assert taken == set(sorted(keys, key=keys.__getitem__)[:50])
    report = found.report
    assert (report.rows_read, report.documents, report.rejected, report.left_out) == (
        903,
        50,
        3,
        850,
    )


def test_a_sample_larger_than_the_corpus_is_all_of_it(tmp_path: Path) -> None:
    write_corpus(tmp_path, make_rows(10))
    for rows in (10, 11):
        found = prepare(tmp_path, corpus__sample={"rows": rows}, rerun=rows)
        assert len(found.documents()) == 10
        assert found.report.left_out == 0


@pytest.mark.protocol(5)
def test_a_conflict_is_rejected_before_the_sample_is_taken(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", *[("same", f"text {n}") for n in range(40)], ("other", "x"))
    found = prepare(tmp_path, corpus__id="id", corpus__sample={"rows": 2})
    assert [d.row for d in found.documents()] == [1, 41]
    assert (found.report.rejected, found.report.left_out) == (39, 0)


def test_a_sample_without_ids_spills_few_of_the_others(tmp_path: Path) -> None:
    write_corpus(tmp_path, make_rows(2_000))
    found = prepare(tmp_path, corpus__sample={"rows": 10})
    spilled = sum(o.size_bytes for o in found.store.list(f"{found.layout.prefix}spill/"))
    assert len(found.documents()) == 10
    assert spilled < 2_000 * 150 / 10


@pytest.mark.protocol(16)
def test_too_many_rejected_rows_stop_the_job_and_say_where_they_are(tmp_path: Path) -> None:
    write_corpus(tmp_path, [*make_rows(7), {"text": None}, {"text": ""}, {"text": None}])
    with pytest.raises(LimitExceeded) as caught:
        prepare(tmp_path, limits__max_rejected=0.29)
    line = str(caught.value)
    assert "3 of 10 rows read are rejected (30.00%)" in line
    assert "allows 29.00%: empty_text 1, no_text 2" in line
    assert "part-0.jsonl row 8 (no_text), part-0.jsonl row 9 (empty_text)" in line
    assert "/rejected/" in line
    assert "\n" not in line
    assert prepare(tmp_path, limits__max_rejected=0.3, rerun=1).report.rejected == 3


def test_a_corpus_without_a_document_is_an_error_of_its_own(tmp_path: Path) -> None:
    write_corpus(tmp_path, [{"text": None}])
    with pytest.raises(CorpusError, match=r"none of 1 rows is a document \(no_text 1; the first"):
        prepare(tmp_path)
    write_corpus(tmp_path, [])
    with pytest.raises(CorpusError, match="none of 0 rows is a document"):
        prepare(tmp_path)


def test_ids_are_checked_only_when_every_split_is_scanned(tmp_path: Path) -> None:
    write_corpus(tmp_path, make_rows(2), "a.jsonl")
    write_corpus(tmp_path, make_rows(2), "b.jsonl")
    store, plan = make_store(tmp_path), make_plan(tmp_path, splits=[(0, 1), (1, 2)])
    scan_corpus(store, plan, 0)
    with pytest.raises(JobNotReady, match="split 1"):
        check_ids(store, plan)


@pytest.mark.protocol(5)
def test_checking_again_gives_the_same_report(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", ("1", "x"), ("1", "y"))
    found = prepare(tmp_path, corpus__id="id")
    assert check_ids(found.store, found.plan) == found.report
    found.store.delete(found.layout.id_report)
    assert check_ids(found.store, found.plan) == found.report


def test_a_column_that_no_row_has_is_wrong_input_that_names_the_field(tmp_path: Path) -> None:
    write_corpus(tmp_path, make_rows(3))
    with pytest.raises(
        CorpusError, match=r"part-0.jsonl row 1 \(no_id\).*corpus.id names 'ticket'"
    ):
        prepare(tmp_path, corpus__id="ticket", limits__max_rejected=0.01)
