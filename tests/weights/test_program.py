"""What `python -m shardline.weights` is asked for, by arguments or by its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardline.reasons import ExitCode
from shardline.weights.__main__ import main, parse_model


@pytest.mark.parametrize(
    ("text", "model", "revision"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "main"),
        ("Qwen/Qwen3-8B@v1", "Qwen/Qwen3-8B", "v1"),
        ("s3://models/a@b", "s3://models/a@b", "main"),
        ("/models/a@b", "/models/a@b", "main"),
    ],
)
def test_a_model_is_named_with_or_without_a_revision(text: str, model: str, revision: str) -> None:
    block = parse_model(text)
    assert (block.model, block.revision) == (model, revision)


def test_without_arguments_the_environment_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    monkeypatch.setenv("SHARDLINE_CACHED_MODELS", f"{tmp_path}/model,\n  {tmp_path}/none")
    assert main(["--cache", str(tmp_path / "cache")]) is ExitCode.WRONG_INPUT
    assert "no model folder there (it has no config.json)" in caplog.text
    assert f"model {tmp_path}/none" in caplog.text


def test_nothing_asked_for_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDLINE_CACHED_MODELS", "")
    assert main([]) is ExitCode.DONE
