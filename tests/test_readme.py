"""Every command and every example of the README, run as it stands there.

They run in a folder that looks like a clone in which the demo has been: `.venv`, the job file's
table below `var/data`, published twice. `make demo`, `up` and `down` are run by e2e/test_demo.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from shardline.job_reader import parse_job
from tests.factories import make_rows, write_corpus
from tests.s3_server import s3_server

PROJECT = Path(__file__).resolve().parents[1]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (\.venv/bin/shardline [^#\n]+)", README, re.MULTILINE)
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
JOB = {
    "name": "review-sentiment",
    "corpus": {"uri": "corpus", "id": "id", "sample": {"rows": 20}},
    "messages": [{"role": "user", "content": "{{ text }}"}],
    "output": {"choices": ["positive", "negative"]},
    "local": {"model": "stub", "engine": "stub"},
}
ROWS = 20


def run(command: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command.split(),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SHARDLINE_", "AWS_"))}
    return inherited | {"SHARDLINE_ROOT": "var/data", "COLUMNS": "200"}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    folder = tmp_path_factory.mktemp("clone")
    (folder / ".venv").symlink_to(Path(sys.prefix))
    write_corpus(folder, make_rows(ROWS + 5))
    for rerun in (0, 1):  # published twice: the first one's files still lie there
        (folder / "JOBFILE").write_text(json.dumps(JOB | {"rerun": rerun}))
        run(".venv/bin/shardline run JOBFILE", folder, environment)
    assert len(list((folder / "var").rglob("published/*/dt=all/*.parquet"))) == 2
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in COMMANDS if "s3://" not in c])
def test_a_command_does_what_it_says(
    command: str, clone: Path, environment: dict[str, str]
) -> None:
    assert run(command, clone, environment)


@pytest.mark.slow
def test_a_job_runs_on_a_bucket(clone: Path, environment: dict[str, str]) -> None:
    (command,) = [c for c in COMMANDS if "s3://" in c]
    with s3_server() as bucket:
        assert "s3://bucket/prefix/published" in run(command, clone, environment | bucket)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_reads_the_rows_of_the_last_publish_only(
    example: str, clone: Path, environment: dict[str, str]
) -> None:
    assert "frame = " in example
    lines = [
        f"{line}\nassert len(frame) == {ROWS}, len(frame)" if line.startswith("frame = ") else line
        for line in example.splitlines()
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_pandas_polars_duckdb_and_delta_are_all_shown() -> None:
    shown = "\n".join(EXAMPLES)
    assert all(name in shown for name in ("pandas", "polars", "duckdb", "DeltaTable"))


def test_the_example_of_a_job_file_is_a_job_file(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "triage.md").write_text("Name the queue.")
    assert parse_job(yaml.safe_load(example), folder=tmp_path).name == "ticket-triage"


def test_every_make_target_is_one_that_make_help_lists() -> None:
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"^    make ([a-z-]+)", README, re.MULTILINE))
    assert named >= {"demo", "test", "up", "down"}
    assert named <= set(re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE))


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (PROJECT / link).exists()] == []
