"""The last word of a job: green means published, current, and the law held."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from shardline.errors import JobNotReady, LawBroken, Superseded
from shardline.layout import published
from shardline.results.merge import merge_shards
from shardline.results.outcome import check_outcome
from shardline.results.settle import settle_shards
from tests.results.answers import NOW, answer_all, error, publish_unseen, result, small_job, text_of

ROWS: list[Any] = [{"id": f"d{i}", "text": f"text {i % 7}"} for i in range(12)]
LATER = NOW + timedelta(hours=1)


@pytest.mark.protocol(22)
def test_a_clean_job_says_what_it_published_and_that_there_is_nothing_to_do(
    tmp_path: Path,
) -> None:
    store, plan = small_job(tmp_path, ROWS)
    answer_all(store, plan)
    publish_unseen(store, plan)
    assert check_outcome(store, plan).line == (
        f"job {plan.job_id}: published 12 rows to test-job dt=all (version 1); "
        "12 rows read = 12 documents + 0 rejected + 0 left out; "
        "12 documents = 7 results + 5 duplicates + 0 dead letters; nothing to do"
    )


@pytest.mark.protocol(22)
def test_dead_letters_and_rejected_rows_are_told_by_reason_with_the_place_to_look(
    tmp_path: Path,
) -> None:
    store, plan = small_job(tmp_path, [*ROWS, "no json"])
    answer_all(store, plan, lambda r: error(r, "too_long") if "1" in text_of(r) else result(r))
    publish_unseen(store, plan)
    line = check_outcome(store, plan).line
    assert "1 rejected (1 bad_json)" in line
    assert "1 dead letters (1 too_long)" in line
    again = f"`shardline replay {plan.job_id} --reason too_long --set FIELD=VALUE`"
    assert f"jobs/{plan.job_id}/dead_letters/, then {again}; runbook: Dead letters" in line


@pytest.mark.protocol(22)
def test_a_job_that_is_merged_and_not_published_is_red(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    with pytest.raises(JobNotReady, match="not merged"):
        check_outcome(store, plan)
    answer_all(store, plan)
    settle_shards(store, plan, generation=1)
    merge_shards(store, plan)
    with pytest.raises(JobNotReady, match=f"not published; next: shardline resume {plan.job_id}"):
        check_outcome(store, plan)


def test_a_job_that_was_replaced_is_red_and_says_by_whom(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    answer_all(store, plan)
    publish_unseen(store, plan)
    _, later = small_job(tmp_path, ROWS, store=store, rerun=1, now=LATER)
    answer_all(store, later)
    publish_unseen(store, later)
    with pytest.raises(Superseded, match=later.job_id):
        check_outcome(store, plan)
    assert check_outcome(store, later).publication.job_id == later.job_id


@pytest.mark.protocol(22)
def test_rows_that_somebody_deleted_from_the_table_are_found(tmp_path: Path) -> None:
    store, plan = small_job(tmp_path, ROWS)
    answer_all(store, plan)
    publish_unseen(store, plan)
    DeltaTable(store.uri_of(published("test-job"))).delete("document_id = 'd3'")
    with pytest.raises(LawBroken, match="11 rows in the table, 12 merged"):
        check_outcome(store, plan)
