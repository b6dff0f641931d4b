"""Buckets: bounds that cut the request bytes evenly, from a look at a part of the corpus."""

from __future__ import annotations

import csv
import gzip
import random
from bisect import bisect_left
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from shardline.corpus import bounds, plan_job
from shardline.corpus.bounds import BUCKET_BYTES, MAX_BUCKETS, bucket_count, choose_bounds
from shardline.corpus.estimate import Estimate, estimate_job, expected_shards
from shardline.corpus.inputs import list_corpus
from shardline.corpus.requests import BodyRenderer
from shardline.corpus.survey import Key, Survey, survey_corpus
from shardline.job import JobFile
from shardline.settings import Settings
from tests.corpus.prepared import prepare
from tests.factories import make_job, make_rows, write_corpus

ROWS = 3_000


def make_texts() -> list[str]:
    rng = random.Random(1)
    return ["x" * rng.randint(1, 400) + f" {n}" for n in range(ROWS)]


def write_as(form: str, corpus: Path, texts: list[str]) -> None:
    corpus.mkdir()
    lines = b"".join(orjson.dumps({"text": text}) + b"\n" for text in texts)
    if form == "parquet":
        pq.write_table(pa.table({"text": texts}), corpus / "a.parquet", row_group_size=500)
    elif form == "csv":
        with (corpus / "a.csv").open("w", newline="") as out:
            csv.writer(out).writerows([("n", "text"), *enumerate(texts)])
    elif form == "gz":
        (corpus / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    elif form == "zst":
        (corpus / "a.jsonl.zst").write_bytes(zstd.compress(lines))
    else:
        half = lines.index(b"\n", len(lines) // 3) + 1
        (corpus / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines[:half])
        (corpus / "b.jsonl").write_bytes(lines[half:])


def survey(job: JobFile, documents: int) -> Survey:
    return survey_corpus(job, list_corpus(job.corpus.uri).inputs, documents)


@pytest.mark.parametrize("form", ["jsonl", "csv", "gz", "zst", "parquet"])
@pytest.mark.parametrize("looked_at", [100, 100_000])
def test_a_survey_comes_near_the_truth(tmp_path: Path, form: str, looked_at: int) -> None:
    texts = make_texts()
    write_as(form, tmp_path / "corpus", texts)
    job = make_job(tmp_path)
    found = survey(job, looked_at)
    overhead = len(BodyRenderer(job).render([""]))
    true_bytes = sum(len(text) + overhead for text in texts)
    near = 0.3 if looked_at == 100 else 0.02
    assert found.rows == pytest.approx(ROWS, rel=near)
    assert found.documents == pytest.approx(ROWS, rel=near)
    assert found.request_bytes == pytest.approx(true_bytes, rel=near)
    assert survey(job, looked_at) == found


def test_a_corpus_sorted_by_length_is_surveyed_from_all_over(tmp_path: Path) -> None:
    write_as("jsonl", tmp_path / "corpus", sorted(make_texts(), key=len))
    found = survey(make_job(tmp_path), 200)
    lengths = sorted(key.length for key in found.keys)
    assert lengths[0] < 150
    assert lengths[-1] > 430


def test_lines_longer_than_a_block_are_surveyed(tmp_path: Path) -> None:
    write_corpus(tmp_path, [{"text": f"{n} " + "x" * 6_000_000} for n in range(3)])
    assert survey(make_job(tmp_path), 100).documents == pytest.approx(3, rel=0.5)


def test_files_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    write_corpus(tmp_path, make_rows(10))
    (tmp_path / "corpus/bad.jsonl.gz").write_bytes(b"none")
    (tmp_path / "corpus/bad.parquet").write_bytes(b"")
    (tmp_path / "corpus/bad.csv").write_bytes(b"")
    assert survey(make_job(tmp_path), 100).documents == pytest.approx(10, rel=0.2)


keys = st.builds(
    Key, st.integers(80, 90), st.sampled_from(["00000000", "55555555", "aaaaaaaa"]), st.just(1.0)
)


@given(st.lists(keys, max_size=60), st.integers(1, 10))
def test_bounds_increase_and_are_fewer_than_buckets(found: list[Key], buckets: int) -> None:
    chosen = choose_bounds(found, buckets)
    assert chosen == sorted(set(chosen))
    assert len(chosen) < buckets or not chosen


def test_buckets_hold_about_equal_bytes() -> None:
    rng = random.Random(1)
    lengths = [int(rng.lognormvariate(6, 1)) + 80 for _ in range(20_000)]
    found = [Key(length, f"{rng.getrandbits(32):08x}", 1.0) for length in lengths]
    chosen = choose_bounds(found, 50)
    held: Counter[int] = Counter()
    for key in found:
        held[bisect_left(chosen, (key.length, key.prefix))] += key.length
    assert len(held) == 50
    assert max(held.values()) < 1.3 * sum(lengths) / 50


def test_one_length_is_split_by_its_hashes() -> None:
    found = [Key(100, f"{n << 22:08x}", 1.0) for n in range(1_000)]
    chosen = choose_bounds(found, 4)
    assert [length for length, _ in chosen] == [100, 100, 100]


def test_small_jobs_have_one_bucket_and_huge_ones_a_bounded_number() -> None:
    assert bucket_count(0) == bucket_count(BUCKET_BYTES) == 1
    assert bucket_count(BUCKET_BYTES * 10) == 10
    assert bucket_count(1e15) == MAX_BUCKETS


def test_a_plan_with_many_buckets_keeps_every_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_as("jsonl", tmp_path / "corpus", make_texts())
    monkeypatch.setattr(bounds, "BUCKET_BYTES", 20_000)
    monkeypatch.setattr(plan_job, "BUCKET_BYTES", 20_000)
    found = prepare(tmp_path)
    assert 30 < found.plan.buckets < 60
    assert len(found.plan.bucket_sets) == found.plan.buckets
    documents = found.documents()
    assert len(documents) == ROWS
    order = [(d.length, d.fingerprint) for d in documents]
    buckets = [bisect_left(found.plan.bounds, (n, f[:4].hex())) for n, f in order]
    assert buckets == sorted(buckets)


def estimate(folder: Path, **overrides: Any) -> Estimate:
    return estimate_job(make_job(folder, **overrides), settings=Settings(), partition=None)


def test_an_estimate_says_how_large_the_job_will_be(tmp_path: Path) -> None:
    write_corpus(tmp_path, make_rows(1_000))
    write_corpus(tmp_path, [], "_SUCCESS")
    found = estimate(tmp_path)
    assert (found.files, found.skipped_files, found.rows, found.documents) == (1, 1, 1_000, 1_000)
    assert found.surveyed == 1_000
    assert found.shards == 1
    assert found.request_bytes > found.input_bytes
    assert estimate(tmp_path, shards__max_requests=100).shards == 10
    sampled = estimate(tmp_path, corpus__sample={"rows": 10})
    assert (sampled.documents, sampled.shards) == (10, 1)
    assert sampled.request_bytes == pytest.approx(found.request_bytes / 100, rel=0.01)


def test_a_job_has_a_shard_per_bucket_at_least(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    assert expected_shards(job, 0, 0) == 0
    assert expected_shards(job, 10, 1_000) == 1
    assert expected_shards(job, 1_000_000, 10 * BUCKET_BYTES) == 20
    assert expected_shards(job, 1_000, 10 * BUCKET_BYTES) == 10
