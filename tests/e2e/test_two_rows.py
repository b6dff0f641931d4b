"""Two rows are followed by hand through every file: one document, and a duplicate of another.

Everything that is read here is read with json, pyarrow and blake3 alone, and every value is computed
from the job file again, so that a mistake of the library cannot hide in the library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from blake3 import blake3

from shardline.cli.boundary import run_command

pytestmark = pytest.mark.slow

_SYSTEM = 'Gib „gut“ oder "schlecht" zurück.\n'
_DOCUMENT = {
    "key": 17,
    "head": "Ünï \u2028 😀",
    "body": 'a "quoted" \\ line\nand 日本\t',
    "stars": 4,
}
_ORIGINAL = {"key": 3, "head": "same", "body": "text", "stars": None}
_DUPLICATE = {"key": 99, "head": "same", "body": "text", "stars": 2}
_FILLER = [{"key": 1000 + i, "head": f"h{i}", "body": "x" * i, "stars": i} for i in range(40)]
_FILES = {
    "a/part-0.jsonl": [*_FILLER[:20], _ORIGINAL],
    "b/part-1.jsonl": [_DOCUMENT, *_FILLER[20:], _DUPLICATE],
}
_JOB = f"""
name: two-rows
corpus: {{uri: corpus, id: key, carry: [stars]}}
messages:
  - {{role: system, content: {json.dumps(_SYSTEM)}}}
  - {{role: user, content: "{{{{ head }}}}: {{{{ body }}}}"}}
parameters: {{temperature: 0, max_tokens: 5}}
output: {{choices: [gut, schlecht]}}
local: {{model: stub, engine: stub}}
shards: {{max_requests: 10}}
"""
_COLUMNS = [
    "document_id", "stars", "output", "model", "finish_reason", "prompt_tokens",
    "completion_tokens", "fingerprint", "duplicate_of", "source", "row", "job_id",
]  # fmt: skip


@dataclass
class Files:
    """The files of one published job."""

    root: Path

    @property
    def job(self) -> Path:
        (found,) = (self.root / "jobs").iterdir()
        return found

    def requests(self) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Every line of every shard file: shard, line number, request."""
        for path in sorted(self.job.glob("shards/*.jsonl")):
            for n, line in enumerate(path.read_bytes().split(b"\n")[:-1]):
                yield path.stem, n, json.loads(line)

    def ledger(self, shard: str) -> list[dict[str, Any]]:
        return list(pq.read_table(self.job / f"ledger/{shard}.parquet").to_pylist())

    def results(self, shard: str) -> list[dict[str, Any]]:
        lines = (self.job / f"results/{shard}.jsonl").read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def published(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for path in sorted((self.root / "published/two-rows/dt=all").glob("*.parquet")):
            rows += pq.ParquetFile(path).read().to_pylist()
        return rows


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("two")
    for name, rows in _FILES.items():
        path = folder / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        path.write_text(text, encoding="utf-8")
    (folder / "job.yaml").write_text(_JOB, encoding="utf-8")
    assert run_command(["run", str(folder / "job.yaml"), "--root", str(folder / "root")]) == 0
    return Files(folder / "root")


def canonical_body(row: dict[str, Any]) -> bytes:
    """The request's body as the protocol writes it: sorted keys, UTF-8, no spaces, no model."""
    choice = {
        "type": "object",
        "properties": {"choice": {"type": "string", "enum": ["gut", "schlecht"]}},
        "required": ["choice"],
        "additionalProperties": False,
    }
    body = {
        "messages": [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": f"{row['head']}: {row['body']}"},
        ],
        "temperature": 0,
        "max_tokens": 5,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "choice", "strict": True, "schema": choice},
        },
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def fingerprint(row: dict[str, Any]) -> str:
    return blake3(canonical_body(row)).hexdigest(16)


def test_the_spill_holds_every_document_and_each_body_once(files: Files) -> None:
    spill = b"".join(p.read_bytes() for p in sorted(files.job.glob("spill/*.bin")))
    assert spill.count(canonical_body(_DOCUMENT)) == 1
    assert spill.count(canonical_body(_ORIGINAL)) == 1
    assert spill.count(bytes.fromhex(fingerprint(_ORIGINAL))) == 2


def test_the_document_is_one_line_of_one_shard_under_its_fingerprint(files: Files) -> None:
    found = [(s, n, r) for s, n, r in files.requests() if r["custom_id"] == fingerprint(_DOCUMENT)]
    ((_, _, request),) = found
    assert request["method"] == "POST"
    assert request["url"] == "/v1/chat/completions"
    assert request["body"] == json.loads(canonical_body(_DOCUMENT)) | {"model": "two-rows"}


def test_shards_are_sorted_by_the_length_of_the_body_then_fingerprint(files: Files) -> None:
    keys = []
    for _, _, request in files.requests():
        body = {k: v for k, v in request["body"].items() if k != "model"}
        raw = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        assert blake3(raw).hexdigest(16) == request["custom_id"]
        keys.append((len(raw), request["custom_id"]))
    assert keys == sorted(keys)
    assert len({key for _, key in keys}) == len(keys) == 42


def test_the_ledger_points_from_the_document_to_its_line(files: Files) -> None:
    ((shard, line, _),) = [
        r for r in files.requests() if r[2]["custom_id"] == fingerprint(_DOCUMENT)
    ]
    (entry,) = [e for e in files.ledger(shard) if e["fingerprint"] == fingerprint(_DOCUMENT)]
    assert entry == {
        "document_id": "17",
        "source": "b/part-1.jsonl",
        "row": 1,
        "fingerprint": fingerprint(_DOCUMENT),
        "duplicate_of": None,
        "line": line,
        "stars": 4,
    }


def test_the_duplicate_has_no_request_and_hangs_on_its_original(files: Files) -> None:
    assert fingerprint(_ORIGINAL) == fingerprint(_DUPLICATE)
    ((shard, line, _),) = [
        r for r in files.requests() if r[2]["custom_id"] == fingerprint(_ORIGINAL)
    ]
    entries = [e for e in files.ledger(shard) if e["fingerprint"] == fingerprint(_ORIGINAL)]
    assert [(e["document_id"], e["duplicate_of"], e["line"]) for e in entries] == [
        ("3", None, line),
        ("99", "3", line),
    ]
    assert [(e["source"], e["row"]) for e in entries] == [
        ("a/part-0.jsonl", 21),
        ("b/part-1.jsonl", 22),
    ]


@pytest.mark.parametrize("row", [_DOCUMENT, _DUPLICATE])
def test_the_result_of_the_line_is_what_is_published(files: Files, row: dict[str, Any]) -> None:
    ((shard, line, _),) = [r for r in files.requests() if r[2]["custom_id"] == fingerprint(row)]
    result = files.results(shard)[line]
    assert result["custom_id"] == fingerprint(row)
    assert result["error"] is None
    assert result["response"]["status_code"] == 200
    body = result["response"]["body"]
    answer = json.loads(body["choices"][0]["message"]["content"])
    (published,) = [r for r in files.published() if r["document_id"] == str(row["key"])]
    assert list(published) == _COLUMNS
    assert published["output"] == answer["choice"]
    assert published["output"] in ("gut", "schlecht")
    assert published["stars"] == row["stars"]
    assert published["fingerprint"] == fingerprint(row)
    assert published["finish_reason"] == body["choices"][0]["finish_reason"]
    assert published["prompt_tokens"] == body["usage"]["prompt_tokens"]
    assert published["completion_tokens"] == body["usage"]["completion_tokens"]
    assert published["duplicate_of"] == ("3" if row is _DUPLICATE else None)
    assert published["job_id"] == files.job.name
    where = {_DOCUMENT["key"]: ("b/part-1.jsonl", 1), _DUPLICATE["key"]: ("b/part-1.jsonl", 22)}
    assert (published["source"], published["row"]) == where[row["key"]]


def test_every_other_row_is_published_once_too(files: Files) -> None:
    rows = files.published()
    corpus = [(name, n + 1) for name, rows in _FILES.items() for n in range(len(rows))]
    assert sorted((r["source"], r["row"]) for r in rows) == sorted(corpus)
    outputs = {r["document_id"]: r["output"] for r in rows}
    assert outputs["3"] == outputs["99"]


def test_the_delta_log_names_exactly_these_files(files: Files) -> None:
    log = files.root / "published/two-rows/_delta_log"
    actions = [
        json.loads(x) for p in sorted(log.glob("*.json")) for x in p.read_text().splitlines()
    ]
    added = {a["add"]["path"].replace("%3D", "=") for a in actions if "add" in a}
    there = {f"dt=all/{p.name}" for p in (files.root / "published/two-rows/dt=all").iterdir()}
    assert added == there
    assert all(re.fullmatch(rf"dt=all/{files.job.name}-part-\d{{6}}\.parquet", p) for p in added)
