"""The gate: a good job passes and leaves pages; a bad one is stopped, and told why."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardline.errors import JobNotReady, ValidationFailed
from shardline.layout import published
from shardline.plan import Plan
from shardline.results.merge import merge_shards, read_merge_report
from shardline.results.settle import settle_shards
from shardline.results.validate import validate_results
from shardline.store import Store
from tests.results.answers import answer_all, error, finish, result, small_job, text_of

pytestmark = pytest.mark.slow  # Great Expectations alone takes seconds to load

ROWS: list[Any] = [{"id": f"d{i}", "text": f"text {i % 9}"} for i in range(14)]


def merged(tmp_path: Path, answer: Any = result, **overrides: Any) -> tuple[Store, Plan]:
    store, plan = small_job(tmp_path, ROWS, **overrides)
    answer_all(store, plan, answer)
    settle_shards(store, plan, generation=1)
    merge_shards(store, plan)
    return store, plan


def edit(store: Store, plan: Plan, change: Any, number: int = 0) -> str:
    """Change the rows of one merged file, as no stage of ours would."""
    assert store.folder is not None
    name = read_merge_report(store, plan).files[number].path
    path = store.folder / published(plan.job_file.table) / name
    table = pq.ParquetFile(path).read()
    pq.write_table(pa.Table.from_pylist(change(table.to_pylist()), table.schema), path)
    return name


def refuse(store: Store, plan: Plan, *says: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        validate_results(store, plan)
    for part in says:
        assert part in str(refused.value)
    assert not store.exists(plan.layout.validation)
    assert store.exists(f"{plan.layout.data_docs}index.html")


def test_a_good_job_passes_quietly_and_leaves_pages(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    store, plan = merged(tmp_path, lambda r: error(r) if text_of(r) == "text 3" else result(r))
    validation = validate_results(store, plan)
    assert (validation.rows, validation.files) == (12, len(read_merge_report(store, plan).files))
    assert "output is never null" in validation.rules
    pages = [found.path for found in store.list(plan.layout.data_docs)]
    assert any(page.endswith("index.html") for page in pages)
    assert validate_results(store, plan) == validation
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
    assert not (tmp_path / "home").exists()
    assert os.environ["GX_ANALYTICS_ENABLED"] == "false"


def test_the_pages_name_the_rules_for_people(tmp_path: Path) -> None:
    store, plan = merged(tmp_path)
    validate_results(store, plan)
    pages = [
        store.read(found.path).decode(errors="ignore")
        for found in store.list(plan.layout.data_docs)
        if re.search(r"validations/.*\.html$", found.path)
    ]
    assert any("document ids are unique but for duplicates" in page for page in pages)
    assert any("finish_reason is one that a whole answer has" in page for page in pages)


def test_an_answer_outside_the_choices_is_refused_with_its_file(tmp_path: Path) -> None:
    store, plan = merged(
        tmp_path,
        lambda r: result(r, '{"choice":"maybe"}' if text_of(r) == "text 3" else '{"choice":"a"}'),
        output={"choices": ["a", "b"]},
    )
    refuse(store, plan, "expected that output is one of the choices", "dt=all/", "data_docs/")


def test_a_finish_reason_of_a_broken_answer_is_refused(tmp_path: Path) -> None:
    store, plan = merged(tmp_path, lambda r: result(r, finish="abort"))
    refuse(store, plan, "finish_reason is one that a whole answer has")


def test_a_cut_answer_is_refused_where_the_job_refuses_such(tmp_path: Path) -> None:
    store, plan = merged(tmp_path / "keep", lambda r: result(r, finish="length"))
    validate_results(store, plan)
    store, plan = merged(
        tmp_path / "refuse",
        lambda r: result(r, finish="length"),
        output={"text": True, "truncated": "dead_letter"},
    )
    refuse(store, plan, "finish_reason")


@pytest.mark.protocol(17)
def test_a_row_lost_from_a_file_is_refused(tmp_path: Path) -> None:
    store, plan = merged(tmp_path)
    name = edit(store, plan, lambda rows: rows[1:])
    refuse(store, plan, "a file holds as many rows as merge counted; rows_differ = 1", name)


@pytest.mark.protocol(17)
def test_one_row_twice_is_refused(tmp_path: Path) -> None:
    store, plan = merged(tmp_path)
    edit(store, plan, lambda rows: [rows[0], *rows[:-1]])
    refuse(store, plan, "no row of the corpus is published twice; repeated_places = 1")


@pytest.mark.protocol(17)
def test_a_document_id_twice_in_two_files_is_refused(tmp_path: Path) -> None:
    store, plan = merged(tmp_path)
    edit(store, plan, lambda rows: [rows[0] | {"document_id": "same"}, *rows[1:]], 0)
    edit(store, plan, lambda rows: [rows[0] | {"document_id": "same"}, *rows[1:]], 1)
    refuse(store, plan, "document ids are unique but for duplicates; repeated_ids = 1")


def test_a_job_without_rows_is_judged_too(tmp_path: Path) -> None:
    store, plan = merged(tmp_path, error)
    assert validate_results(store, plan).rows == 0


def test_from_corpus_to_table_with_the_gate_between(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    answer_all(store, plan)
    assert finish(store, plan).rows == 14


def test_an_unmerged_job_is_not_ready(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    with pytest.raises(JobNotReady, match="not merged"):
        validate_results(store, plan)
