"""Values that tests start from: a job, a corpus on disk, a store. Every argument has a default."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shardline.job import JobFile
from shardline.job_reader import parse_job
from shardline.store import Store, open_store

_ASKS: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "{{ text }}"}]},
    "completion": {"prompt": "{{ text }}"},
    "embedding": {"input": "{{ text }}", "parameters": {}},
}


def make_job(folder: Path, **overrides: Any) -> JobFile:
    """A job on the stub engine over `folder/corpus/`; overrides are dotted with double underscores.

    make_job(tmp_path, corpus__id="id", output={"choices": ["a", "b"]})
    make_job(tmp_path, kind="embedding")
    """
    given: dict[str, Any] = {
        "name": "test-job",
        "corpus": {"uri": str(folder / "corpus")},
        "messages": [{"role": "user", "content": "{{ text }}"}],
        "parameters": {"max_tokens": 8, "temperature": 0},
        "local": {"model": "stub", "engine": "stub"},
        "limits": {"max_rejected": 1, "max_dead": 1},
    }
    if kind := overrides.get("kind"):
        del given["messages"]
        given |= _ASKS[kind]
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    return parse_job(given, folder=folder, overrides=dotted)


def write_corpus(
    folder: Path, rows: Iterable[Mapping[str, Any]], name: str = "part-0.jsonl"
) -> Path:
    """Write rows as JSON Lines to `folder/corpus/name`; returns the file."""
    path = folder / "corpus" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def make_rows(n: int, start: int = 0) -> list[dict[str, Any]]:
    """n different documents with ids."""
    return [{"id": f"d{i}", "text": f"document number {i}"} for i in range(start, start + n)]


def make_store(folder: Path) -> Store:
    """A store on local disk below `folder`."""
    return open_store(str(folder / "root"))
