"""`make demo` as a stranger types it: a real Airflow, a real model, and a table that adds up.

The rows are counted again with pyarrow and json alone, from the files that the demo left.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PROJECT = Path(__file__).resolve().parents[2]
CORPUS = PROJECT / "var" / "corpus" / "reviews"
ROWS = 60
READ = 10_605 + 3_708


@dataclass
class Demo:
    """A demo that has ended, in a home and a root of its own."""

    said: str
    root: Path
    environment: dict[str, str]

    @property
    def job(self) -> Path:
        (job,) = (self.root / "jobs").iterdir()
        return job

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.root / "published" / "review-sentiment__sample")

    def lines(self, pattern: str) -> list[dict[str, Any]]:
        return [line for file in sorted(self.job.glob(pattern)) for line in read_lines(file)]

    def make(self, *arguments: str) -> str:
        return make(self.environment, *arguments)


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().split(b"\n") if line]


def make(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        ["make", "-C", str(PROJECT), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    # not below pytest's folder, which is closed to the user that PostgreSQL runs as
    with tempfile.TemporaryDirectory(prefix="shardline-demo-") as name:
        root = Path(name) / "data"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SHARDLINE_")}
        environment |= {"SHARDLINE_HOME": name, "SHARDLINE_ROOT": str(root)}
        environment.pop("MAKEFLAGS", None)
        said = make(environment, "demo", f"ROWS={ROWS}")
        yield Demo(said, root, environment)
        make(environment, "down")


def test_every_row_of_the_corpus_is_accounted_for(demo: Demo) -> None:
    rows_read = sum(len(read_lines(file)) for file in CORPUS.glob("*.jsonl"))
    rejected = demo.lines("rejected/*.jsonl")
    ledger = [
        row for f in demo.job.glob("ledger/*.parquet") for row in pq.read_table(f).to_pylist()
    ]
    results = demo.lines("results/*.jsonl")
    dead = [line for line in results if line["error"]]
    duplicates = [row for row in ledger if row["duplicate_of"] is not None]
    manifest = json.loads((demo.job / "manifest.json").read_bytes())

    assert rows_read == READ
    assert len(ledger) == ROWS
    assert rows_read == len(ledger) + len(rejected) + manifest["left_out"]
    assert len(ledger) == (len(results) - len(dead)) + len(duplicates) + len(dead)
    assert Counter(line["custom_id"] for line in results) == Counter(
        {row["fingerprint"]: 1 for row in ledger}
    )
    assert f"{rows_read:,} rows read = {ROWS:,} documents + {len(rejected):,} rejected" in demo.said


def test_the_table_holds_the_models_own_answers(demo: Demo) -> None:
    answers = {
        line["custom_id"]: json.loads(line["response"]["body"]["choices"][0]["message"]["content"])
        for line in demo.lines("results/*.jsonl")
        if line["error"] is None
    }
    corpus = {row["id"]: row for file in CORPUS.glob("*.jsonl") for row in read_lines(file)}
    published = demo.table.to_pyarrow_table().to_pylist()

    assert len(published) == ROWS
    for row in published:
        assert {"choice": row["output"]} == answers[row["fingerprint"]]
        assert row["rating"] == corpus[row["document_id"]]["rating"]
        assert row["prompt_tokens"] > 0
        assert row["completion_tokens"] > 0
    assert {row["output"] for row in published} == {"positive", "negative"}


def test_it_says_how_often_the_model_agrees_with_people(demo: Demo) -> None:
    found = re.search(r"agrees with people on (\d+) of (\d+) rated rows", demo.said)
    assert found is not None
    rated = [row for row in demo.table.to_pyarrow_table().to_pylist() if row["rating"] != 0]
    right = [row for row in rated if (row["output"] == "positive") == (row["rating"] > 0)]
    assert (int(found[1]), int(found[2])) == (len(right), len(rated))


def test_a_second_demo_says_that_the_job_is_done_and_runs_nothing(demo: Demo) -> None:
    attempts = sorted(demo.job.glob("attempts/*/*"))
    version = demo.table.version()
    assert "this job was already done" in demo.make("demo", f"ROWS={ROWS}")
    assert sorted(demo.job.glob("attempts/*/*")) == attempts
    assert demo.table.version() == version


def test_airflow_opens_for_a_look_and_closes_again(demo: Demo) -> None:
    assert re.search(r"http://\S+", demo.make("up"))
    demo.make("down")
    assert "running" not in demo.make("status").replace("not running", "")
