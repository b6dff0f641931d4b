"""Replays from the command line, on the stub engine in real workers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from tests.cli.shell import Shell
from tests.factories import write_corpus

pytestmark = [pytest.mark.slow, pytest.mark.protocol(19)]

LONG, ENDLESS = "word " * 9, "word " * 60
ROWS: list[dict[str, Any]] = [
    *({"id": f"short{i}", "text": f"short {i}"} for i in range(6)),
    {"id": "broken", "text": "[stub:error=engine_error]"},
    {"id": "long", "text": LONG},
    {"id": "long-again", "text": LONG},
    {"id": "endless", "text": ENDLESS},
]
ALL_IDS = {row["id"] for row in ROWS}
MENDED = (
    "--set", "parameters.max_tokens=100", "--set", "local.engine_args.max_model_len=1000",
)  # fmt: skip


def write_job(folder: Path) -> None:
    """Answers of four words at most, from a model that reads fifty."""
    job = {
        "name": "reviews",
        "corpus": {"uri": "corpus", "id": "id"},
        "messages": [{"role": "user", "content": "{{ text }}"}],
        "parameters": {"max_tokens": 4},
        "output": {"truncated": "dead_letter"},
        "local": {"model": "stub", "engine": "stub", "engine_args": {"max_model_len": 50}},
        "shards": {"max_requests": 4},
        "limits": {"max_rejected": 0, "max_dead": 1},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return prepared(tmp_path)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A published job for those who change nothing."""
    shell = prepared(tmp_path_factory.mktemp("done"))
    shell("run", shell.job_file)
    return shell


def prepared(folder: Path) -> Shell:
    write_corpus(folder, ROWS)
    write_job(folder)
    return Shell(folder)


def published_ids(shell: Shell) -> set[str]:
    files = shell("files", "reviews").splitlines()
    return set(pd.concat(pd.read_parquet(file) for file in files).document_id)


def job_id_in(said: str) -> str:
    found = re.search(r"reviews-all-[0-9a-f]{8}", said)
    assert found
    return found[0]


def test_dead_letters_come_back_with_the_settings_that_mend_them(shell: Shell) -> None:
    said = shell("run", shell.job_file)
    job_id = job_id_in(said)
    again = f"shardline replay {job_id} --reason engine_error --reason truncated"
    assert again in said
    assert published_ids(shell) == ALL_IDS - {"broken", "long", "long-again", "endless"}

    listed = shell.run("dead-letters", "reviews")
    assert len([json.loads(line) for line in listed.stdout.splitlines()]) == 4
    assert f"`{again}` runs them again" in listed.stderr

    # the same settings give the same ends, and harm nothing
    said = shell(*again.split()[1:])
    assert "3 dead letters = 2 to run in 1 shard + 0 whose results were found + 1 untouched" in said
    assert "10 documents = 6 results + 1 duplicates + 3 dead letters" in said
    assert "the law holds" in shell("verify", "reviews")

    said = shell("replay", "reviews", *MENDED)
    assert "3 dead letters = 3 to run" in said
    assert "10 documents = 8 results + 1 duplicates + 1 dead letters" in said
    assert published_ids(shell) == ALL_IDS - {"broken"}
    assert "the law holds" in shell("verify", f"{job_id}-r2")
    assert "the law holds" in shell("verify", job_id)

    (dead,) = [json.loads(x) for x in shell.run("dead-letters", "reviews").stdout.splitlines()]
    assert (dead["document_id"], dead["reason"]) == ("broken", "engine_error")
    states = {job["job_id"]: job["state"] for job in json.loads(shell("jobs", "--json"))}
    assert states == {
        job_id: "superseded", f"{job_id}-r1": "superseded", f"{job_id}-r2": "published",
    }  # fmt: skip
    assert shell("status", job_id).endswith(f"next: shardline status {job_id}-r2\n")
    assert "nothing to replay that may do better" in shell("replay", job_id, "--reason", "too_long")
    report = json.loads(
        (Path(shell("report", "reviews").strip()).parent / "report.json").read_text()
    )
    assert (
        "A replay: of 3 dead letters, 0 had a result in the segments, 3 ran" in report["headline"]
    )
    assert report["law"]["dead_letters"] == 1

    said = shell("run", shell.job_file)
    assert f"already done, and replayed as {job_id}-r2" in said
    assert "9 in" in said


def test_an_open_replay_is_finished_or_given_up_before_another_begins(shell: Shell) -> None:
    job_id = job_id_in(shell("run", shell.job_file))
    strict = ("--reason", "engine_error", "--set", "limits.max_dead=0")
    assert "limits.max_dead" in shell("replay", job_id, *strict, code=1)
    said = shell("replay", job_id, *MENDED, code=1)
    assert f"another replay is open, {job_id}-r1 since" in said
    assert "limits.max_dead" in shell("resume", f"{job_id}-r1", code=1)
    assert f"{job_id}-r1: abandoned" in shell("replay", job_id, "--abandon")
    assert "this replay was abandoned" in shell("resume", f"{job_id}-r1", code=1)
    assert "abandoned:" in shell("status", f"{job_id}-r1")
    assert "no replay is open" in shell("replay", job_id, "--abandon", code=1)
    shell("replay", "reviews", *MENDED)
    assert published_ids(shell) == ALL_IDS - {"broken"}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--reason", "sad"), "sad: no reason of a dead letter; there are: bad_parameter, "),
        (("--set", "messages=3"), "messages: a replay cannot change it"),
        (("--set", "parameters.stream=true"), "parameters: stream cannot be set here"),
        (("--set", "local.modle=x"), "local.modle: unknown field"),
    ],
)
def test_a_wrong_wish_is_named_in_one_line(
    done: Shell, options: tuple[str, ...], line: str
) -> None:
    said = done("replay", "reviews", *options, code=2)
    assert line in said
    assert len(said.splitlines()) == 1


def test_a_job_that_is_not_published_is_resumed_and_not_replayed(shell: Shell) -> None:
    limited = ("--set", "limits.max_dead=0")
    job_id = job_id_in(shell("run", shell.job_file, *limited, code=1))
    said = shell("replay", job_id, code=1)
    assert f"`shardline resume {job_id}` goes on with the job itself" in said
