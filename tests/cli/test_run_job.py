"""A whole job through the command line on the stub engine, and every command that looks at it."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pytest
import yaml

from tests.cli.shell import Shell
from tests.factories import make_rows, write_corpus

pytestmark = pytest.mark.slow

_EVIL = "<script>alert(1)</script>"


def write_job(folder: Path, **changes: Any) -> None:
    job: dict[str, Any] = {
        "name": "reviews",
        "corpus": {"uri": "corpus", "id": "id", "carry": ["label"]},
        "messages": [{"role": "user", "content": "{{ text }}"}],
        "parameters": {"max_tokens": 8},
        "output": {"choices": ["good", "bad"]},
        "local": {"model": "stub", "engine": "stub"},
        "shards": {"max_requests": 20},
        "limits": {"max_rejected": 1, "max_dead": 1},
        "report": {"samples": 5, "compare_with": "label"},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job | changes), encoding="utf-8")


def corpus_rows() -> list[dict[str, Any]]:
    """50 documents, 4 duplicates of them, one that is a dead letter, one script, two rejected."""
    rows = [row | {"label": "good" if i % 2 else "bad"} for i, row in enumerate(make_rows(50))]
    rows += [rows[i] | {"id": f"again{i}"} for i in range(4)]
    rows += [{"id": "dead", "text": "[stub:error=too_long] " + _EVIL, "label": "good"}]
    rows += [{"id": "evil", "text": _EVIL, "label": None}]
    return [*rows, {"id": "blank", "text": " "}, {"id": "none"}]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """One published job that the tests below look at."""
    folder = tmp_path_factory.mktemp("job")
    write_corpus(folder, corpus_rows())
    write_job(folder)
    shell = Shell(folder)
    shell("run", shell.job_file)
    return shell


def test_run_says_where_the_dataset_is_and_that_the_law_held(shell: Shell) -> None:
    said = shell("run", shell.job_file)
    assert "already done" in said
    assert f"table   {(shell.folder / 'root/published/reviews').as_uri()}" in said
    assert "rows    55 in" in said
    assert "58 rows read = 56 documents + 2 rejected + 0 left out" in said
    assert "56 documents = 51 results + 4 duplicates + 1 dead letters" in said
    assert "report.html" in said
    assert "shardline files reviews" in said


def test_a_job_that_is_done_runs_nothing_again(shell: Shell) -> None:
    attempts = sorted((shell.folder / "root/jobs").rglob("attempts/*/*.json"))
    shell("run", shell.job_file)
    assert sorted((shell.folder / "root/jobs").rglob("attempts/*/*.json")) == attempts


def test_a_job_for_pods_says_that_it_runs_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who types a command of a job on a cluster must not wait for pods that nobody sends."""
    monkeypatch.setenv("SHARDLINE_WORKER_IMAGE", "worker:1")
    write_corpus(tmp_path, [row | {"label": "good"} for row in make_rows(3)])
    write_job(tmp_path, run_on="gpu", gpu={"model": "stub", "engine": "stub"})
    shell = Shell(tmp_path)
    assert "run_on is gpu, and this command runs its shards on this machine" in shell(
        "run", shell.job_file
    )


def test_the_status_equals_the_truth(shell: Shell) -> None:
    status = json.loads(shell("status", "reviews", "--json"))
    assert status["state"] == "published"
    requests = sum(
        path.read_bytes().count(b"\n") for path in (shell.folder / "root").rglob("shards/*.jsonl")
    )
    assert (status["rows_done"], status["rows_total"]) == (requests, requests) == (52, 52)
    assert status["rows_dead"] == 1
    assert status["shards"]["done"] == sum(status["shards"].values()) > 1


def test_jobs_are_listed_with_their_state(shell: Shell) -> None:
    (job,) = json.loads(shell("jobs", "--json"))
    assert job["state"] == "published"
    assert job["job_id"].startswith("reviews-all-")


def test_verify_counts_the_law_again(shell: Shell) -> None:
    assert "the law holds" in shell("verify", "reviews")


def test_dead_letters_and_rejected_rows_are_printed_as_lines(shell: Shell) -> None:
    listed = shell.run("dead-letters", "reviews").stdout  # the hint on stderr is for people
    (dead,) = [json.loads(line) for line in listed.splitlines()]
    assert (dead["document_id"], dead["reason"]) == ("dead", "too_long")
    rejected = [json.loads(line) for line in shell("rejected", "reviews").splitlines()]
    assert {r["reason"] for r in rejected} == {"empty_text", "no_text"}


def test_the_report_has_the_figures_of_the_files_and_runs_no_script(shell: Shell) -> None:
    page = Path(shell("report", "reviews").strip()).read_text(encoding="utf-8")
    report = json.loads((next((shell.folder / "root/jobs").iterdir()) / "report.json").read_text())
    assert report["state"] == "published"
    assert report["law"] == {
        "rows_read": 58, "documents": 56, "rejected": 2, "left_out": 0,
        "results": 51, "duplicates": 4, "dead_letters": 1,
    }  # fmt: skip
    assert "<script" not in page
    assert not re.search(r'(src|href)="(https?:)?//', page)
    assert len(report["samples"]) == 5
    assert sum(a["rows"] for a in report["answers"]) == 55
    assert report["published"]["rows"] == 55
    assert report["validation"]["success"] is True


def test_the_lines_that_the_report_gives_to_read_the_dataset_do_read_it(shell: Shell) -> None:
    page = Path(shell("report", "reviews").strip()).read_text(encoding="utf-8")
    snippets = [unescape(s) for s in re.findall(r"<pre>(.*?)</pre>", page, re.DOTALL)]
    (python,) = [s for s in snippets if s.startswith("import duckdb")]
    (command,) = [s for s in snippets if s.startswith("shardline files")]
    names: dict[str, Any] = {}
    for line in python.splitlines():
        found = eval(line, names) if line.startswith(("duckdb", "polars.", "table.")) else None
        if found is None:
            exec(line, names)
        elif line.startswith("duckdb"):
            assert sum(n for _, n in found.fetchall()) == 55
        else:
            assert len(found) == 55
    listed = shell(*command.split("#")[0].split()[1:]).splitlines()
    assert sorted(listed) == sorted(uri.removeprefix("file://") for uri in names["files"])


def test_the_report_s_agreement_is_that_of_the_table(shell: Shell) -> None:
    table = pd.concat(pd.read_parquet(f) for f in shell("files", "reviews").splitlines())
    labelled = table[table.label.notna()]
    report = json.loads((next((shell.folder / "root/jobs").iterdir()) / "report.json").read_text())
    assert report["agreement"]["rows"] == len(labelled) == 54
    assert report["agreement"]["equal"] == int((labelled.label == labelled.output).sum())


def test_try_shows_answers_and_publishes_nothing(shell: Shell) -> None:
    before = sorted((shell.folder / "root").rglob("*"))
    said = shell("try", shell.job_file, "--rows", "3")
    assert said.count("=> ") == 3
    assert "user: document number" in said
    assert "nothing was published" in said
    assert sorted((shell.folder / "root").rglob("*")) == before


def test_plan_estimates_without_a_root_and_counts_exactly_with_one(shell: Shell) -> None:
    about = json.loads(shell("plan", shell.job_file, "--json"))
    assert about["rows"] == 58
    root = str(shell.folder / "other")
    exact = json.loads(shell("plan", shell.job_file, "--exact", "--json", "--root", root))
    assert (exact["rows_read"], exact["documents"], exact["requests"]) == (58, 56, 52)


def test_overrides_make_another_job_and_a_sample_another_table(shell: Shell) -> None:
    said = shell("run", shell.job_file, "--sample", "5", "--set", "parameters.max_tokens=4")
    assert "published/reviews__sample" in said
    assert "rows    5 in" in said
    assert len(shell("files", "reviews").splitlines()) > 1
    assert sum(len(pd.read_parquet(f)) for f in shell("files", "reviews__sample").splitlines()) == 5


def test_reports_without_samples_hold_no_text_of_a_document(tmp_path: Path) -> None:
    write_corpus(tmp_path, corpus_rows())
    write_job(tmp_path, report={"samples": 0, "compare_with": "label"})
    shell = Shell(tmp_path)
    shell("run", shell.job_file)
    (job,) = (tmp_path / "root/jobs").iterdir()
    for name in ("report.json", "report.html"):
        assert "document number" not in (job / name).read_text(encoding="utf-8")
        assert "alert(1)" not in (job / name).read_text(encoding="utf-8")


def test_files_are_those_of_the_newest_publication_in_any_reader(tmp_path: Path) -> None:
    write_corpus(tmp_path, corpus_rows())
    write_job(tmp_path)
    shell = Shell(tmp_path)
    shell("run", shell.job_file)
    old = shell("files", "reviews").splitlines()
    assert "version 2" in shell("run", shell.job_file, "--set", "rerun=1")
    new = shell("files", "reviews").splitlines()
    assert not set(old) & set(new)
    assert shell("files", "reviews", "--version", "1").splitlines() == old
    with duckdb.connect() as connection:
        (counted,) = connection.execute("SELECT count(*) FROM read_parquet(?)", [new]).fetchall()
    assert counted == (55,)
    assert pl.read_parquet(new).height == 55
    assert sum(len(pd.read_parquet(f)) for f in new) == 55
    assert "no partition 2026-01-01" in shell(
        "files", "reviews", "--partition", "2026-01-01", code=2
    )
    old_job = re.search(r"reviews-all-[0-9a-f]{8}", old[0])
    assert old_job
    assert "superseded" in shell("status", old_job[0])


def test_a_broken_law_is_named_and_is_no_success(tmp_path: Path) -> None:
    write_corpus(tmp_path, corpus_rows())
    write_job(tmp_path)
    shell = Shell(tmp_path)
    shell("run", shell.job_file)
    victim = next((tmp_path / "root/jobs").rglob("results/*.jsonl"))
    lines = victim.read_bytes().splitlines(keepends=True)
    victim.write_bytes(b"".join(lines[1:]))
    said = shell("verify", "reviews", code=1)
    assert victim.stem in said
    assert "1 requests without a line in results" in said


def test_too_many_dead_letters_fail_the_job_and_the_report_says_why(tmp_path: Path) -> None:
    rows = [{"id": str(i), "text": f"[stub:error=too_long] {i}"} for i in range(30)]
    write_corpus(tmp_path, rows)
    write_job(tmp_path, limits={"max_dead": 0.1}, corpus={"uri": "corpus", "id": "id"}, report={})
    shell = Shell(tmp_path)
    said = shell("run", shell.job_file, code=1)
    assert "limits.max_dead" in said
    assert "Traceback" not in said
    (job,) = (tmp_path / "root/jobs").iterdir()
    report = json.loads((job / "report.json").read_text())
    assert report["state"] in ("inferred", "stopped")
    assert report["law"] is None
    assert "shardline resume" in report["next_step"]


def test_a_mistyped_engine_argument_is_mended_by_running_again(tmp_path: Path) -> None:
    write_corpus(tmp_path, corpus_rows())
    write_job(tmp_path, local={"model": "stub", "engine": "stub", "engine_args": {"latncy_s": 0}})
    shell = Shell(tmp_path)
    said = shell("run", shell.job_file, code=2)
    assert "latncy_s" in said.splitlines()[-1]
    assert said.count("dead: permanent") == 1
    (job,) = (tmp_path / "root/jobs").iterdir()
    assert "latncy_s" in (job / "report.html").read_text(encoding="utf-8")
    write_job(tmp_path, local={"model": "stub", "engine": "stub", "engine_args": {"latency_s": 0}})
    assert "rows    55 in" in shell("run", shell.job_file)
    assert "the law holds" in shell("verify", "reviews")
