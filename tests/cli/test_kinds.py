"""Jobs of every kind through the command line on the stub engine: from the job file to the table."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from shardline.engines.stub import StubArgs
from tests.cli.test_run_job import Shell
from tests.factories import make_rows, write_corpus

pytestmark = pytest.mark.slow

ASKS: dict[str, dict[str, Any]] = {
    "completion": {
        "prompt": {"file": "prompt.txt"},
        "parameters": {"max_tokens": 3},
        "output": {"text": True},
    },
    "embedding": {"input": "{{ text }}"},
}
DIMENSION = StubArgs().dimension


def make_shell(folder: Path, kind: str, **changes: Any) -> Shell:
    """A job over 30 documents, two duplicates, two that are dead letters and a row that is none."""
    rows = make_rows(30) + [row | {"id": f"again{row['id']}"} for row in make_rows(2)]
    rows += [{"id": "dead", "text": "word " * 60}, {"id": "killer", "text": "[stub:die] now"}]
    rows.append({"id": "none"})
    write_corpus(folder, rows)
    (folder / "prompt.txt").write_text("Text: {{ text }}\nSo:")
    job: dict[str, Any] = {
        "name": f"a-{kind}",
        "kind": kind,
        "corpus": {"uri": "corpus", "id": "id"},
        "local": {"model": "stub", "engine": "stub", "engine_args": {"max_model_len": 50}},
        "shards": {"max_requests": 20},
        "limits": {"max_rejected": 1, "max_dead": 1},
        "report": {"samples": 3},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job | ASKS[kind] | changes))
    return Shell(folder)


@pytest.fixture(scope="module", params=ASKS)
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """One published job of each kind that the tests below look at."""
    shell = make_shell(tmp_path_factory.mktemp("job"), request.param)
    shell("run", shell.job_file)
    return shell


def kind_of(shell: Shell) -> str:
    return str(yaml.safe_load(Path(shell.job_file).read_text())["kind"])


def read_report(shell: Shell) -> tuple[dict[str, Any], str]:
    page = Path(shell("report", f"a-{kind_of(shell)}").strip()).read_text(encoding="utf-8")
    (folder,) = (shell.folder / "root/jobs").iterdir()
    return json.loads((folder / "report.json").read_text()), page


def test_the_law_holds_and_what_cannot_be_done_is_a_dead_letter(shell: Shell) -> None:
    name = f"a-{kind_of(shell)}"
    assert "the law holds" in shell("verify", name)
    dead = [json.loads(line) for line in shell.run("dead-letters", name).stdout.splitlines()]
    found = {line["document_id"]: line["reason"] for line in dead}
    assert found == {"dead": "too_long", "killer": "engine_killer"}
    status = json.loads(shell("status", name, "--json"))
    assert (status["state"], status["rows_done"], status["rows_dead"]) == ("published", 32, 2)


def test_the_table_holds_texts_or_vectors_of_one_length(shell: Shell) -> None:
    kind = kind_of(shell)
    rows = pl.read_parquet(shell("files", f"a-{kind}").split())
    assert len(rows) == 32
    if kind == "embedding":
        assert rows["output"].dtype == pl.Array(pl.Float32, DIMENSION)
        assert set(rows["completion_tokens"]) == {0}
        norms = (rows["output"].to_numpy() ** 2).sum(axis=1)
        assert norms == pytest.approx([1.0] * 32, abs=1e-5)
    else:
        assert set(rows["output"]) == {"Text: document number"}
        assert set(rows["finish_reason"]) == {"length"}


def test_the_report_shows_what_makes_sense_of_the_kind(shell: Shell) -> None:
    report, page = read_report(shell)
    assert report["law"]["results"] == 30
    if kind_of(shell) == "embedding":
        assert report["vectors"]["dimension"] == DIMENSION
        assert report["vectors"]["mean_norm"] == pytest.approx(1, abs=1e-5)
        assert (report["samples"], report["tokens"]["finish_reasons"]) == ([], {})
        assert "Vectors" in page
        assert "Samples" not in page
        assert "answer tokens" not in page
    else:
        assert report["vectors"] is None
        assert [s["output"] for s in report["samples"]] == ["Text: document number"] * 3
        assert all(s["text"].startswith("document") for s in report["samples"])


def test_the_lines_of_the_report_read_the_dataset(shell: Shell) -> None:
    _, page = read_report(shell)
    snippets = [unescape(s) for s in re.findall(r"<pre>(.*?)</pre>", page, re.DOTALL)]
    (python,) = [s for s in snippets if s.startswith("import duckdb")]
    done = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ASKS)
def test_plan_and_try_work_before_a_run(tmp_path: Path, kind: str) -> None:
    shell = make_shell(tmp_path, kind)
    plan = json.loads(shell("plan", shell.job_file, "--json"))
    assert plan["documents"] == 34
    said = shell("try", shell.job_file, "--rows", "3")
    shown = rf"{DIMENSION} numbers, norm 1\.000: -?0\.\d{{4}}, .*…" if kind == "embedding" else ""
    expected = shown or r"Text: document number \(cut at max_tokens\)"
    assert len(re.findall(rf"=> {expected}", said)) >= 2
    assert "document number" in said


def test_a_parameter_that_the_engine_does_not_know_stops_the_job(tmp_path: Path) -> None:
    shell = make_shell(tmp_path, "completion", parameters={"echo": True})
    assert "bad_parameter" in shell("run", shell.job_file, code=2)


def test_dimensions_are_what_is_published(tmp_path: Path) -> None:
    shell = make_shell(tmp_path, "embedding", parameters={"dimensions": 5})
    shell("run", shell.job_file)
    rows = pl.read_parquet(shell("files", "a-embedding").split())
    assert rows["output"].dtype == pl.Array(pl.Float32, 5)
    said = shell("run", shell.job_file, "--set", "parameters.dimensions=6", code=2)
    assert "output: the published table holds" in said
