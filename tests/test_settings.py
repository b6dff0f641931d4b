"""Settings come from SHARDLINE_* and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from shardline.settings import Settings


def test_without_an_environment_the_project_holds_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ROOT", "JOBS_DIR", "CORPUS_PREFIXES", "KEEP_DAYS"):
        monkeypatch.delenv(f"SHARDLINE_{name}", raising=False)
    found = Settings()
    assert Path(found.root).is_absolute()
    assert found.jobs_dir.name == "jobs"
    assert found.corpus_prefixes == ()
    assert found.keep_days == 30


def test_the_environment_sets_each_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDLINE_ROOT", "s3://bucket/root")
    monkeypatch.setenv("SHARDLINE_JOBS_DIR", "/jobs")
    monkeypatch.setenv("SHARDLINE_CORPUS_PREFIXES", "s3://lake/tickets, /data,")
    monkeypatch.setenv("SHARDLINE_KEEP_DAYS", "7")
    found = Settings()
    assert found.root == "s3://bucket/root"
    assert found.jobs_dir == Path("/jobs")
    assert found.corpus_prefixes == ("s3://lake/tickets", "/data")
    assert found.keep_days == 7


def test_a_value_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDLINE_KEEP_DAYS", "0")
    with pytest.raises(ValidationError, match="keep_days"):
        Settings()
