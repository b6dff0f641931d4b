"""A corpus on a real S3 server: names, globs, all formats, and objects that change."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardline.corpus import sources
from shardline.corpus.ids import check_ids
from shardline.corpus.inputs import list_corpus
from shardline.corpus.plan_job import plan_job
from shardline.corpus.scan import scan_corpus
from shardline.errors import CorpusError
from shardline.settings import Settings
from shardline.store import open_store
from tests.corpus.prepared import NOW, Prepared
from tests.factories import make_job
from tests.s3_server import s3_server

pytestmark = pytest.mark.slow

NAMES = ["100%.jsonl", "a b.jsonl", "a%20b.jsonl", "part[1].jsonl", "q?.jsonl", "ü-日.jsonl"]
LINE = b'{"id":"%d","text":"text %d"}\n'


@pytest.fixture(scope="module")
def lake() -> Iterator[Any]:
    with s3_server() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        sources.bucket_store.cache_clear()
        client = boto3.client("s3", endpoint_url=environment["AWS_ENDPOINT_URL"])
        client.create_bucket(Bucket="lake")
        client.create_bucket(Bucket="jobs")
        yield client
        client.close()
    sources.bucket_store.cache_clear()


def put(lake: Any, key: str, content: bytes) -> None:
    lake.put_object(Bucket="lake", Key=key, Body=content)


def test_names_are_names_and_what_is_hidden_is_skipped(lake: Any) -> None:
    for name in [*NAMES, "_SUCCESS", "sub/x.jsonl", "sub/"]:
        put(lake, f"names/{name}", b"" if name == "sub/" else b"{}\n")
    put(lake, "names-beside/y.jsonl", b"{}\n")
    listing = list_corpus("s3://lake/names/")
    assert [f.source for f in listing.inputs] == sorted([*NAMES, "sub/x.jsonl"], key=str.encode)
    assert {(f.source, f.reason) for f in listing.skipped} == {
        ("_SUCCESS", "hidden"),
        ("sub", "folder_marker"),
    }
    for name in NAMES:
        (file,) = list_corpus(f"s3://lake/names/{name}").inputs
        assert (file.uri, file.source) == (f"s3://lake/names/{name}", name)
    globbed = list_corpus("s3://lake/names/**/x*.jsonl", ["s3://lake/names"])
    assert [f.source for f in globbed.inputs] == ["sub/x.jsonl"]


@pytest.mark.parametrize("uri", ["s3://lake/nothing", "s3://lake/nothing/*.jsonl", "s3://"])
def test_a_corpus_of_nothing_is_one_clear_error(lake: Any, uri: str) -> None:
    with pytest.raises(CorpusError):
        list_corpus(uri)


def test_every_format_is_read_from_s3_into_s3(lake: Any, tmp_path: Path) -> None:
    table = io.BytesIO()
    ids = [str(n) for n in range(20_000, 30_000)]
    pq.write_table(pa.table({"id": ids, "text": [f"text {n}" for n in ids]}), table)
    csv = "id,text\n" + "".join(f"{n},text {n}\n" for n in range(30_000, 31_000))
    many = b"".join(LINE % (n, n) for n in range(20_000))
    put(lake, "all/a.jsonl.gz", gzip.compress(many))
    put(lake, "all/b.parquet", table.getvalue())
    put(lake, "all/c.csv", csv.encode())
    put(lake, "all/d.jsonl", many)
    store = open_store("s3://jobs/root")
    job = make_job(tmp_path, corpus__uri="s3://lake/all", corpus__id="id")
    plan = plan_job(job, store=store, settings=Settings(), partition=None, now=NOW)
    scan_corpus(store, plan, 0)
    found = Prepared(store, plan, check_ids(store, plan))
    assert found.report.documents == 51_000
    documents = found.documents()
    assert len(documents) == 51_000
    assert len({d.fingerprint for d in documents}) == 31_000


@pytest.mark.protocol(1)
@pytest.mark.parametrize("change", ["changed", "vanished"])
def test_an_object_that_changed_or_vanished_is_an_error(
    lake: Any, tmp_path: Path, change: str
) -> None:
    put(lake, f"{change}/a.jsonl", LINE % (1, 1))
    store = open_store("s3://jobs/root")
    job = make_job(tmp_path, corpus__uri=f"s3://lake/{change}")
    plan = plan_job(job, store=store, settings=Settings(), partition=None, now=NOW)
    lake.delete_object(Bucket="lake", Key=f"{change}/a.jsonl")
    if change == "changed":
        put(lake, "changed/a.jsonl", LINE % (2, 2))
    with pytest.raises(CorpusError) as caught:
        scan_corpus(store, plan, 0)
    assert [p.reason for p in caught.value.problems] == [change]
