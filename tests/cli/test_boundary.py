"""Every mistake of a newcomer gets one clear line that says what to do, and exit code 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardline.cli.boundary import run_command
from tests.factories import make_rows, write_corpus


def write_job(folder: Path, **changes: Any) -> str:
    """A job file over `folder/corpus`, with some fields changed."""
    job: dict[str, Any] = {
        "name": "reviews",
        "corpus": {"uri": "corpus"},
        "messages": [{"role": "user", "content": "{{ text }}"}],
        "local": {"model": "stub", "engine": "stub"},
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job | changes), encoding="utf-8")
    return str(path)


@pytest.fixture(autouse=True)
def _root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDLINE_ROOT", str(tmp_path / "root"))
    write_corpus(tmp_path, make_rows(3))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must be refused as wrong input; returns its one line."""
    code = run_command(arguments)
    error = capsys.readouterr().err
    assert code == 2, error
    assert error.startswith("shardline: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error
    return error


def test_a_job_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "run", str(tmp_path / "nope.yaml"))
    assert "nope.yaml: cannot be read (No such file or directory)" in line


def test_a_job_file_that_is_no_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text("name: [", encoding="utf-8")
    assert "is not YAML" in refused(capsys, "run", str(tmp_path / "job.yaml"))


def test_an_unknown_field_names_the_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, "run", write_job(tmp_path, corpsu={"uri": "x"}))
    assert "corpsu: unknown field" in line
    assert "`shardline schema`" in line


def test_a_name_that_is_no_slug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "name: expected a slug" in refused(capsys, "run", write_job(tmp_path, name="My Job"))


def test_a_corpus_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "run", write_job(tmp_path, corpus={"uri": "nowhere"}))
    assert "nowhere" in line


def test_an_empty_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty" in refused(capsys, "run", write_job(tmp_path, corpus={"uri": "empty"}))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["run"], "missing_column"), (["plan"], "--exact"), (["plan", "--exact"], "missing_column")],
)
def test_a_column_that_no_file_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    (tmp_path / "corpus" / "part-0.jsonl").unlink()
    (tmp_path / "corpus" / "part-0.csv").write_text("id,text\n1,hello\n", encoding="utf-8")
    job = write_job(tmp_path, messages=[{"role": "user", "content": "{{ body }}"}])
    assert says in refused(capsys, *arguments, job)


def test_a_model_folder_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_job(tmp_path, local={"model": "./nomodel", "engine": "vllm"})
    assert "no model folder there" in refused(capsys, "run", job)


def test_a_root_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    line = refused(capsys, "run", write_job(tmp_path), "--root", str(tmp_path / "file" / "root"))
    assert "cannot make this folder" in line


def test_a_corpus_outside_the_allowed_prefixes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDLINE_CORPUS_PREFIXES", "/lake/")
    assert "/lake/" in refused(capsys, "run", write_job(tmp_path))


def test_a_partition_that_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = write_job(tmp_path, corpus={"uri": "corpus/dt={{ partition }}"})
    assert "needs a partition" in refused(capsys, "run", job)


def test_a_runner_that_is_not_yet_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "not yet possible" in refused(capsys, "run", write_job(tmp_path, run_on="hosted"))


@pytest.mark.parametrize(
    "command", ["status", "verify", "report", "resume", "cancel", "dead-letters", "rejected"]
)
def test_a_job_that_nobody_knows(capsys: pytest.CaptureFixture[str], command: str) -> None:
    line = refused(capsys, command, "reviews-all-0a1b2c3d")
    assert "no job reviews-all-0a1b2c3d" in line
    assert "`shardline jobs`" in line


@pytest.mark.parametrize("name", ["reviews", "../../etc"])
def test_a_table_that_was_never_published(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert name in refused(capsys, "files", name)


def test_an_unknown_option_and_an_unknown_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "see `shardline run --help`" in refused(
        capsys, "run", write_job(tmp_path), "--rows", "3"
    )
    assert "see `shardline --help`" in refused(capsys, "rnu", write_job(tmp_path))
    assert "see `shardline run --help`" in refused(capsys, "run")


def test_an_override_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = write_job(tmp_path)
    assert "FIELD=VALUE" in refused(capsys, "run", job, "--set", "max_tokens")
    assert "nope: unknown field" in refused(capsys, "run", job, "--set", "nope.x=3")


def test_a_setting_of_the_environment_that_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDLINE_KEEP_DAYS", "soon")
    monkeypatch.delenv("SHARDLINE_ROOT")
    assert "SHARDLINE_KEEP_DAYS" in refused(capsys, "jobs")


def test_the_schema_is_json_and_names_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert {"name", "corpus", "messages", "limits", "report"} <= set(schema["properties"])


def test_every_command_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    from shardline.cli.app import app

    commands = [c.name or c.callback.__name__ for c in app.registered_commands if c.callback]
    assert len(commands) >= 13
    for command in commands:
        assert run_command([command, "--help"]) == 0
        assert "Example" in capsys.readouterr().out, command


def test_a_root_without_jobs_says_how_to_make_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["jobs"]) == 0
    assert "shardline run JOBFILE" in capsys.readouterr().out
