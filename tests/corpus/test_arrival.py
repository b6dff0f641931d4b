"""A job is not planned before its corpus is complete, when its job file says how to know."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardline.corpus.arrival import check_arrived
from shardline.corpus.plan_job import plan_job
from shardline.errors import CorpusError, JobFileError, NotAllowed
from shardline.plan import make_job_id
from shardline.settings import Settings
from tests.corpus.prepared import NOW
from tests.factories import make_job, make_rows, make_store, write_corpus


def test_a_plan_before_the_marker_is_refused_and_after_it_made(tmp_path: Path) -> None:
    write_corpus(tmp_path, make_rows(2))
    job = make_job(tmp_path, corpus__wait_for="./corpus/_SUCCESS")
    given = {"store": make_store(tmp_path), "settings": Settings(), "partition": None, "now": NOW}
    with pytest.raises(CorpusError, match=r"corpus.wait_for: .*/corpus/_SUCCESS is not there"):
        plan_job(job, **given)
    (tmp_path / "corpus/_SUCCESS").touch()
    plan = plan_job(job, **given)
    assert [file.source for file in plan.inputs] == ["part-0.jsonl"]


def test_the_marker_lies_where_a_corpus_may_lie(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    with pytest.raises(NotAllowed):
        check_arrived(str(tmp_path / "elsewhere"), [str(tmp_path / "lake")])
    with pytest.raises(NotAllowed):
        check_arrived("s3://other/_SUCCESS", ["s3://lake/"])


def test_what_is_waited_for_makes_no_other_job(tmp_path: Path) -> None:
    plain = make_job(tmp_path)
    waiting = make_job(tmp_path, corpus__wait_for="./_SUCCESS", corpus__wait_hours=1)
    assert make_job_id(plain, None, "stub", []) == make_job_id(waiting, None, "stub", [])


def test_its_partition_is_filled_in(tmp_path: Path) -> None:
    job = make_job(tmp_path, corpus__wait_for="s3://lake/dt={{ partition }}/_SUCCESS")
    assert job.wait_uri("2026-11-28") == "s3://lake/dt=2026-11-28/_SUCCESS"
    with pytest.raises(JobFileError, match=r"corpus\.wait_for: {{ partition }} needs a partition"):
        job.wait_uri(None)
    assert make_job(tmp_path).wait_uri(None) is None


@pytest.mark.parametrize(
    ("wait_for", "said"),
    [
        ("s3://lake/dt=*/_SUCCESS", "no glob"),
        ("s3://lake/{{ ds }}/_SUCCESS", "no placeholder but"),
        ("s3://lake", "expected one object"),
        ("s3://lake/folder/", "expected one object"),
        ("https://lake/_SUCCESS", "expected one object"),
        ("s3:///_SUCCESS", "expected one object"),
    ],
)
def test_what_cannot_be_waited_for_is_a_problem_of_its_field(
    tmp_path: Path, wait_for: str, said: str
) -> None:
    with pytest.raises(JobFileError) as caught:
        make_job(tmp_path, corpus__wait_for=wait_for)
    (problem,) = caught.value.problems
    assert problem.field == "corpus.wait_for"
    assert said in problem.message


def test_a_scheduled_job_waits_for_each_of_its_dates(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"corpus\.wait_for: expected {{ partition }} in it"):
        make_job(
            tmp_path,
            schedule="@daily",
            corpus__uri="c/{{ partition }}",
            corpus__wait_for="./_SUCCESS",
        )
