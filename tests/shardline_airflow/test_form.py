"""The trigger form: what it offers, and which job it means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Param
from airflow.sdk.exceptions import ParamValidationError

from shardline.errors import JobFileError, NotAllowed, WrongInput
from shardline_airflow.form import ALLOWED_ENGINE_ARGS, form, job_files, job_of

JOB = """
name: reviews
corpus: {uri: corpus}
messages: [{role: user, content: "{{ text }}"}]
parameters: {max_tokens: 8}
limits: {max_dead: 0.5}
local: {model: stub, engine: stub, engine_args: {trust_remote_code: true}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "reviews.yaml").write_text(JOB)
    (tmp_path / "tickets.yaml").write_text(JOB.replace("reviews", "tickets"))
    (tmp_path / "prompts").mkdir()
    return tmp_path


def filled(folder: Path, **given: Any) -> dict[str, Any]:
    """The form's defaults with some fields filled in, checked as Airflow checks them."""
    return {
        name: param.resolve(given.get(name, param.value)) for name, param in form(folder).items()
    }


def whole_job(**engine_args: Any) -> dict[str, Any]:
    return {
        "name": "inline",
        "corpus": {"uri": "corpus"},
        "messages": [{"role": "user", "content": "{{ text }}"}],
        "local": {"model": "stub", "engine": "stub", "engine_args": engine_args},
    }


def test_the_form_offers_every_job_file_and_takes_the_first(folder: Path) -> None:
    assert job_files(folder) == ["reviews.yaml", "tickets.yaml"]
    assert filled(folder)["job_file"] == "reviews.yaml"


def test_the_form_opens_with_a_chat_that_needs_no_partition(folder: Path) -> None:
    (folder / "a_daily.yaml").write_text(JOB + 'schedule: "@daily"\n')
    (folder / "an_embedding.yaml").write_text("name: x\nkind: embedding\n")
    assert filled(folder)["job_file"] == "reviews.yaml"
    assert job_files(folder)[:2] == ["a_daily.yaml", "an_embedding.yaml"]


def test_a_job_of_another_kind_can_be_started_and_refuses_fields_of_a_chat(folder: Path) -> None:
    whole = {name: value for name, value in whole_job().items() if name != "messages"}
    whole |= {"kind": "embedding", "input": "{{ text }}"}
    assert job_of(filled(folder) | {"job": whole}, folder).kind == "embedding"
    with pytest.raises(JobFileError, match="parameters: max_tokens cannot be set here"):
        job_of(filled(folder) | {"job": whole, "max_tokens": 5}, folder)


def test_an_empty_folder_still_makes_a_form(tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match="choose a job file"):
        job_of(filled(tmp_path), tmp_path)


def test_every_field_has_a_type_a_title_and_a_description(folder: Path) -> None:
    for name, param in form(folder).items():
        assert param.schema["type"], name
        assert param.schema["title"], name
        assert param.description, name
        assert param.schema["section"], name


def test_every_number_is_bounded(folder: Path) -> None:
    for name, param in form(folder).items():
        if {"integer", "number"} & set(param.schema["type"]) or param.schema["type"] == "integer":
            assert {"minimum", "maximum"} <= set(param.schema), name


def test_an_untouched_form_means_the_job_file_as_it_is(folder: Path) -> None:
    job = job_of(filled(folder, job_file="tickets.yaml"), folder)
    assert (job.name, job.limits.max_dead, job.parameters, job.rerun) == (
        "tickets",
        0.5,
        {"max_tokens": 8},
        0,
    )
    assert job.corpus.sample is None


def test_fields_change_the_job_of_this_run(folder: Path) -> None:
    given = filled(
        folder,
        sample_rows=50,
        sample_seed=3,
        model="./other",
        max_tokens=99,
        max_rejected=0.25,
        max_dead=0,
        rerun=2,
    )
    job = job_of(given, folder)
    assert job.corpus.sample is not None
    assert (job.corpus.sample.rows, job.corpus.sample.seed) == (50, 3)
    assert job.engine.model == str(folder / "other")
    assert job.parameters == {"max_tokens": 99}
    assert (job.limits.max_rejected, job.limits.max_dead, job.rerun) == (0.25, 0, 2)


def test_a_whole_job_wins_over_the_job_file_and_starts_at_the_jobs_folder(folder: Path) -> None:
    job = job_of(filled(folder, job=whole_job(latency_s=0), max_tokens=5), folder)
    assert job.name == "inline"
    assert job.corpus.uri == str(folder / "corpus")
    assert job.parameters == {"max_tokens": 5}


@pytest.mark.protocol(24)
@pytest.mark.parametrize("argument", ["trust_remote_code", "download_dir", "hf_overrides"])
def test_a_whole_job_may_not_set_engine_arguments_off_the_list(folder: Path, argument: str) -> None:
    with pytest.raises(NotAllowed, match=f"local.engine_args.{argument}: not allowed"):
        job_of(filled(folder, job=whole_job(**{argument: True})), folder)


def test_a_whole_job_may_set_every_engine_argument_on_the_list(folder: Path) -> None:
    job = job_of(filled(folder, job=whole_job(**dict.fromkeys(ALLOWED_ENGINE_ARGS, 1))), folder)
    assert set(job.engine.engine_args) == ALLOWED_ENGINE_ARGS


def test_a_wrong_job_names_the_field(folder: Path) -> None:
    wrong = whole_job() | {"messages": []}
    with pytest.raises(JobFileError, match=r"conf\.job: messages: "):
        job_of(filled(folder, job=wrong), folder)


@pytest.mark.parametrize("name", ["../reviews.yaml", "/etc/passwd", "nothing.yaml", "prompts"])
def test_a_file_that_is_not_offered_is_no_job_file(folder: Path, name: str) -> None:
    with pytest.raises(JobFileError, match="no such job file"):
        job_of(filled(folder) | {"job_file": name}, folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job_file", "other.yaml"),
        ("partition", 20261128),
        ("partition", "2026-13-45"),
        ("sample_rows", 0),
        ("max_tokens", "many"),
        ("max_dead", 1.5),
        ("rerun", -1),
        ("force_publish", "yes"),
        ("job", "reviews"),
    ],
)
def test_the_form_refuses_values_out_of_bounds(folder: Path, field: str, value: Any) -> None:
    param: Param = form(folder)[field]
    with pytest.raises(ParamValidationError):
        param.resolve(value)


def test_a_rerun_may_be_a_time_in_seconds_as_the_demo_sends_it(folder: Path) -> None:
    assert job_of(filled(folder, job_file="reviews.yaml", rerun=1_796_000_000), folder).rerun
