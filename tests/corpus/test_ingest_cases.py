"""Difficult input: every case of cases/README.md comes out exactly as expected.json says."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from shardline.corpus.ids import check_ids
from shardline.corpus.inputs import list_corpus
from shardline.corpus.plan_job import plan_job
from shardline.corpus.records import SplitReport
from shardline.corpus.scan import scan_corpus, scan_good_files
from shardline.corpus.spill import SpillReader, SpillRecord
from shardline.errors import CorpusError
from shardline.job import JobFile
from shardline.plan import Plan
from shardline.rows import RejectedRow
from shardline.settings import Settings
from shardline.store import Store
from tests.factories import make_job, make_store

CASES = Path(__file__).parent / "cases"
EXPECTED = json.loads((CASES / "expected.json").read_text(encoding="utf-8"))
NOW = datetime(2026, 11, 28, tzinfo=UTC)


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inputs that are too big, or too oddly named, to be kept."""
    spec = importlib.util.spec_from_file_location("make_generated", CASES / "make_generated.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("cases")
    for name, content in module.FILES.items():
        target = folder / "generated" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return folder


def job_of(case: dict[str, Any], corpus: Path, folder: Path) -> JobFile:
    settings = EXPECTED["defaults"] | case.get("settings", {})

    def literal(text: str) -> str:
        return text.replace("{{", "{{ '{{' }}")

    prompt = (
        literal(settings["prompt_before"])
        + "{{ "
        + settings["text_field"]
        + " }}"
        + literal(settings["prompt_after"])
    )
    return make_job(
        folder,
        corpus__uri=str(corpus),
        corpus__id=settings["id_field"],
        messages=[{"role": "user", "content": prompt}],
        limits__max_text_bytes=settings["max_text_bytes"],
    )


def read_documents(store: Store, plan: Plan) -> list[SpillRecord]:
    reader = SpillReader(store, plan, 0, plan.buckets)
    found = [record for n in range(plan.buckets) for record in reader.bucket(n)]
    return sorted(found, key=lambda record: record.position)


def read_rejected(store: Store, plan: Plan) -> Iterator[RejectedRow]:
    names = [plan.layout.rejected(n) for n in range(len(plan.splits))] + [plan.layout.rejected_ids]
    for name in names:
        for line in store.read(name).splitlines():
            yield msgspec.json.decode(line, type=RejectedRow)


def text_of(job: JobFile, settings: dict[str, Any], record: SpillRecord, body: bytes) -> str:
    prompt: str = orjson.loads(body)["messages"][0]["content"]
    before, after = settings["prompt_before"], settings["prompt_after"]
    assert prompt.startswith(before)
    assert prompt.endswith(after)
    return prompt[len(before) : len(prompt) - len(after)]


def outcomes(
    case: dict[str, Any], job: JobFile, store: Store, plan: Plan, reports: list[SplitReport]
) -> dict[str, dict[str, Any]]:
    """The files of a case in the form of expected.json."""
    settings = EXPECTED["defaults"] | case.get("settings", {})
    files: dict[str, dict[str, Any]] = {
        f.source: {"file": f.source, "outcome": "skipped", "reason": f.reason} for f in plan.skipped
    }
    for file in (f for report in reports for f in report.files):
        files[file.source] = {"file": file.source, "outcome": file.outcome}
        if file.outcome == "error":
            files[file.source]["reason"] = file.reason
        else:
            files[file.source] |= {"rows": 0, "accepted": [], "duplicates": [], "rejected": []}
    first: dict[bytes, SpillRecord] = {}
    for record in read_documents(store, plan):
        file = files[record.source]
        file["rows"] += 1
        named = {"row": record.row, "id": record.document_id if settings["id_field"] else None}
        if record.fingerprint in first:
            original = first[record.fingerprint]
            of = {"file": original.source, "row": original.row}
            file["duplicates"].append(named | {"of": of})
            continue
        first[record.fingerprint] = record
        assert record.body is not None
        assert record.length == len(record.body)
        text = text_of(job, settings, record, record.body)
        prompt = settings["prompt_before"] + text + settings["prompt_after"]
        file["accepted"].append(
            named
            | {
                "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
                "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(),
            }
        )
    for row in read_rejected(store, plan):
        files[row.source]["rows"] += 1
        files[row.source]["rejected"].append({"row": row.row, "reason": row.reason})
    for file in files.values():
        file.get("rejected", []).sort(key=lambda r: r["row"])
    return files


def assert_as_expected(expected: dict[str, Any], found: dict[str, Any]) -> None:
    assert found["outcome"] == expected["outcome"]
    if "reason" in expected:
        allowed = expected["reason"]
        assert found["reason"] in ([allowed] if isinstance(allowed, str) else allowed)
    if expected["outcome"] != "read":
        return
    assert found["rows"] == expected["rows"]
    assert found["duplicates"] == expected["duplicates"]
    assert found["rejected"] == expected["rejected"]
    wanted = [
        {k: v for k, v in row.items() if k in expected_row}
        for row, expected_row in zip(found["accepted"], expected["accepted"], strict=True)
    ]
    assert wanted == expected["accepted"]


@pytest.mark.parametrize("case", EXPECTED["cases"], ids=lambda c: c["name"])
def test_a_case_comes_out_as_expected(
    case: dict[str, Any], tmp_path: Path, generated: Path
) -> None:
    root = generated if case["input"].startswith("generated/") else CASES
    corpus = root / case["input"]
    job = job_of(case, corpus, tmp_path)
    expected = {f["file"]: f for f in case["files"]}
    listing = list_corpus(str(corpus))
    if listing.problems:
        with pytest.raises(CorpusError):
            plan_job(job, store=make_store(tmp_path), settings=Settings(), partition=None, now=NOW)
        found = {
            p.source: {"file": p.source, "outcome": "error", "reason": p.reason}
            for p in listing.problems
        }
    else:
        store = make_store(tmp_path)
        plan = plan_job(job, store=store, settings=Settings(), partition=None, now=NOW)
        if not case["publishes"]:
            assert len(plan.splits) == 1
            with pytest.raises(CorpusError):
                scan_corpus(store, plan, 0)
        reports = [scan_good_files(store, plan, n) for n in range(len(plan.splits))]
        try:
            report = check_ids(store, plan)
        except CorpusError:
            assert case["totals"]["accepted"] == 0
            found = {
                f.source: {"file": f.source, "outcome": f.outcome, "reason": f.reason}
                for r in reports
                for f in r.files
            }
        else:
            assert report.rows_read == case["totals"]["rows"]
            assert report.rejected == case["totals"]["rejected"]
            assert report.rows_read == report.documents + report.rejected + report.left_out
            found = outcomes(case, job, store, plan, reports)
    assert sorted(found) == sorted(expected)
    for name, file in expected.items():
        assert_as_expected(file, found[name])
