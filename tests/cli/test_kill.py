"""The whole run is killed for real, in the middle, and goes on: nothing is lost and nothing doubled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml

from tests.factories import make_rows, write_corpus
from tests.waits import until

pytestmark = pytest.mark.slow

_ROWS = 400


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(Path(sys.executable).parent / "shardline"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"SHARDLINE_ROOT": str(folder / "root")} | environment,
    )


def start_slowly(folder: Path, shards_done: int) -> subprocess.Popen[str]:
    """A run that works on the next shard after so many, and has ten seconds of work left at least."""
    run = start(folder, "run", str(folder / "job.yaml"), SHARDLINE_MAX_NUM_SEQS="4")
    try:
        until(
            f"worker on a shard after {shards_done}",
            is_running(folder, shards_done),
            while_it=lambda: run.poll() is None,
        )
    except AssertionError:
        run.kill()  # its worker drains
        print(run.communicate()[0])
        raise
    return run


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job that takes some seconds: rows wait a little, five shards hold a few."""
    write_corpus(tmp_path, make_rows(_ROWS))
    (tmp_path / "job.yaml").write_text(
        yaml.safe_dump(
            {
                "name": "reviews",
                "corpus": {"uri": "corpus", "id": "id"},
                "messages": [{"role": "user", "content": "{{ text }}"}],
                "output": {"choices": ["good", "bad"]},
                "local": {
                    "model": "stub",
                    "engine": "stub",
                    "engine_args": {"latency_s": 0.2, "max_num_seqs": 40},
                },
                "shards": {"max_requests": 80},
            }
        ),
        encoding="utf-8",
    )
    return tmp_path


def is_running(folder: Path, shards_done: int) -> Callable[[], bool]:
    """Whether so many shards are done and a worker has fed rows of the next one."""

    def look() -> bool:
        done = {p.stem for p in folder.glob("root/jobs/*/results/*.jsonl")}
        attempts = folder.glob("root/jobs/*/attempts/*/*.json")
        fed = {p.parent.name for p in attempts if json.loads(p.read_bytes())["fed"]}
        return len(done) >= shards_done and bool(fed - done)

    return look


def check_whole(folder: Path) -> None:
    process = start(folder, "files", "reviews")
    files = process.communicate()[0].splitlines()
    rows = pd.concat(pd.read_parquet(f) for f in files)
    assert Counter(rows.document_id) == Counter(f"d{i}" for i in range(_ROWS))
    verified = start(folder, "verify", "reviews")
    assert "the law holds" in verified.communicate()[0]
    assert verified.returncode == 0


@pytest.mark.protocol(7, 9, 13)
def test_a_run_that_is_killed_with_its_worker_goes_on_and_loses_nothing(job: Path) -> None:
    run = start_slowly(job, 2)
    run.send_signal(signal.SIGSTOP)  # or it may start another worker while we look
    family = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    for process in family:
        process.kill()
    run.communicate()
    assert run.returncode == -signal.SIGKILL
    kept = {p.name: p.read_bytes() for p in job.glob("root/jobs/*/results/*.jsonl")}
    assert len(kept) >= 2
    again = start(job, "run", str(job / "job.yaml"))
    said = again.communicate()[0]
    assert again.returncode == 0, said
    results = {p.name: p.read_bytes() for p in job.glob("root/jobs/*/results/*.jsonl")}
    assert kept.items() <= results.items()
    check_whole(job)


@pytest.mark.protocol(12, 13)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_stopped_commits_what_runs_and_says_how_to_go_on(
    job: Path, number: signal.Signals
) -> None:
    run = start_slowly(job, 1)
    workers = psutil.Process(run.pid).children(recursive=True)
    run.send_signal(number)
    said = run.communicate()[0]
    assert run.returncode == 1, said
    assert "rows are committed" in said
    assert "`shardline resume reviews-all-" in said
    assert not [w for w in workers if w.is_running()]
    ends = [json.loads(p.read_bytes())["end"] for p in job.glob("root/jobs/*/attempts/*/*.json")]
    assert set(ends) <= {"done", "drained"}
    resumed = start(job, "resume", "reviews")
    said = resumed.communicate()[0]
    assert resumed.returncode == 0, said
    check_whole(job)
