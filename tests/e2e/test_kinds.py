"""Embeddings and completions with real models, from the command line to the published table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

pytest.importorskip("tokenizers")  # comes with vLLM: absent on macOS

from samples.minilm import make_minilm
from samples.tiny_model import make_tiny_model
from tests.factories import make_rows, write_corpus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PROJECT = Path(__file__).parents[2]
MODELS = PROJECT / "var" / "models"
FILMS = ["a wonderful film with a great cast", "a dull and far too long movie"]
PHONES = ["the battery of this phone is empty by noon", "the camera takes sharp pictures at night"]
ENDS = ["", "!", ", I think", " indeed"]


def shardline(root: Path, *arguments: str) -> str:
    environment = os.environ | {"SHARDLINE_ROOT": str(root)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [str(Path(sys.executable).parent / "shardline"), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_job(folder: Path, job: dict[str, Any]) -> str:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return str(path)


def read(root: Path, table: str) -> pl.DataFrame:
    return pl.read_parquet(shardline(root, "files", table).split())


def reviews() -> list[dict[str, Any]]:
    """60 reviews in families of nearly equal ones, one that is too long, and a duplicate."""
    rows = [
        {"id": f"r{n}", "text": f"{text}{end}", "family": text}
        for n, (text, end) in enumerate((t, e) for t in FILMS + PHONES for e in ENDS)
    ]
    rows += [
        {"id": f"n{n}", "text": f"note {n} says that the price is {n * 7} euros", "family": "notes"}
        for n in range(42)
    ]
    rows.append({"id": "long", "text": "word " * 400, "family": "long"})
    return [*rows, {"id": "again", "text": FILMS[0], "family": FILMS[0]}]


def test_a_corpus_is_embedded_and_near_texts_have_near_vectors(tmp_path: Path) -> None:
    make_minilm(MODELS / "all-minilm-l6-v2")
    write_corpus(tmp_path, reviews())
    job = yaml.safe_load((PROJECT / "include/jobs/review_embeddings.yaml").read_text())
    job["corpus"] = {"uri": "corpus", "id": "id", "carry": ["family"]}
    job["local"]["model"] = str(MODELS / "all-minilm-l6-v2")
    job["limits"] = {"max_dead": 0.1}
    root = tmp_path / "root"
    shardline(root, "run", write_job(tmp_path, job))
    assert "the law holds" in shardline(root, "verify", "review-embeddings")
    (dead,) = map(json.loads, shardline(root, "dead-letters", "review-embeddings").splitlines())
    assert (dead["document_id"], dead["reason"]) == ("long", "too_long")

    rows = read(root, "review-embeddings")
    assert rows["output"].dtype == pl.Array(pl.Float32, 384)
    assert set(rows["document_id"]) == {row["id"] for row in reviews()} - {"long"}
    assert rows["prompt_tokens"].min() > 2
    vectors = rows["output"].to_numpy().astype(np.float64)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-3)
    families = rows["family"].to_numpy()
    nearness = vectors @ vectors.T
    for text in FILMS + PHONES:
        own = families == text
        films, phones = np.isin(families, FILMS), np.isin(families, PHONES)
        strangers = phones if text in FILMS else films
        assert nearness[np.ix_(own, own)].min() > nearness[np.ix_(own, strangers)].max()


def test_a_corpus_is_completed_by_a_model_that_has_no_chat_template(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny")
    config = model / "tokenizer_config.json"
    settings = json.loads(config.read_text())
    del settings["chat_template"]
    config.write_text(json.dumps(settings))
    write_corpus(tmp_path, [*make_rows(40), {"id": "long", "text": "word " * 300}])
    job = {
        "name": "goes-on",
        "kind": "completion",
        "corpus": {"uri": "corpus", "id": "id"},
        "prompt": "Once there was {{ text }}",
        "parameters": {"max_tokens": 6, "temperature": 0},
        "local": {"model": str(model), "engine_args": {"max_model_len": 256}},
        "limits": {"max_dead": 0.1},
    }
    root = tmp_path / "root"
    shardline(root, "run", write_job(tmp_path, job))
    assert "the law holds" in shardline(root, "verify", "goes-on")
    (dead,) = map(json.loads, shardline(root, "dead-letters", "goes-on").splitlines())
    assert (dead["document_id"], dead["reason"]) == ("long", "too_long")
    rows = read(root, "goes-on")
    assert len(rows) == 40
    assert rows["output"].null_count() == 0
    assert rows["completion_tokens"].max() == 6
    files = [path.read_bytes() for path in root.rglob("results/*.jsonl")]
    lines = [json.loads(line) for file in files for line in file.splitlines()]
    bodies = [line["response"]["body"] for line in lines if line["response"]]
    assert {body["object"] for body in bodies} == {"text_completion"}
