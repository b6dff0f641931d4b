"""Jobs that are ready for the results room: prepared by the real stages, answered without a worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from shardline.corpus.ids import check_ids
from shardline.corpus.plan_job import plan_job
from shardline.corpus.scan import scan_corpus
from shardline.job import JobFile
from shardline.plan import Plan
from shardline.reasons import AttemptEnd
from shardline.results.merge import merge_shards
from shardline.results.publish import Publication, publish_results
from shardline.results.schema import check_schema
from shardline.results.settle import settle_shards
from shardline.results.validate import validate_results
from shardline.rows import Attempt, ErrorBody, Request, Response, Result
from shardline.settings import Settings
from shardline.shards.cut import cut_shards
from shardline.shards.manifest import read_shards, write_manifest
from shardline.store import Store
from tests.factories import make_job, make_store

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
ATTEMPT = "019a0000-0000-7000-8000-000000000001"
Answer = Callable[[Request], Result]


def text_of(request: Request) -> str:
    """The document's text as the request's last message holds it."""
    return str(request.body["messages"][-1]["content"])


def result(request: Request, content: str | None = None, finish: str = "stop") -> Result:
    """A result whose answer says what it was asked, unless told otherwise."""
    said = f"answer to {text_of(request)}" if content is None else content
    message = {"role": "assistant", "content": said}
    body = {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": request.body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
    }
    return Result(id="r", custom_id=request.custom_id, response=Response(200, "r", body))


def error(request: Request, reason: str = "engine_error") -> Result:
    """An error line."""
    return Result(id="e", custom_id=request.custom_id, error=ErrorBody(reason, f"it was {reason}"))


def prepare(store: Store, job: JobFile, partition: str | None = None, now: datetime = NOW) -> Plan:
    """Everything up to the manifest and the schema, by the real stages."""
    plan = plan_job(job, store=store, settings=Settings(), partition=partition, now=now)
    for split in range(len(plan.splits)):
        scan_corpus(store, plan, split)
    check_ids(store, plan)
    for bucket_set in range(len(plan.bucket_sets)):
        cut_shards(store, plan, bucket_set)
    write_manifest(store, plan)
    check_schema(store, plan)
    return plan


def small_job(
    folder: Path,
    rows: list[Mapping[str, Any]],
    *,
    store: Store | None = None,
    partition: str | None = None,
    now: datetime = NOW,
    **overrides: Any,
) -> tuple[Store, Plan]:
    """A prepared job over these rows, in shards of 4 requests."""
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    target = corpus / "part-0.jsonl"
    target.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    job = make_job(folder, **{"corpus__id": "id", "shards__max_requests": 4, **overrides})
    store = store or make_store(folder)
    return store, prepare(store, job, partition, now)


def requests_of(store: Store, plan: Plan, shard: str) -> list[Request]:
    """The requests of a shard file."""
    lines = store.read(plan.layout.shard(shard)).splitlines()
    return [msgspec.json.decode(line, type=Request) for line in lines]


def lines_of(results: list[Result]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in results)


def put_attempt(
    store: Store,
    plan: Plan,
    shard: str,
    attempt: str = ATTEMPT,
    end: AttemptEnd | None = None,
    message: str = "",
    **fields: Any,
) -> None:
    """An attempt's record, as a worker leaves it."""
    record = Attempt(attempt, shard, 1, "host", 1, "now", end=end, message=message, **fields)
    store.write(plan.layout.attempt(shard, attempt), msgspec.json.encode(record))


def put_segment(
    store: Store, plan: Plan, shard: str, results: list[Result], attempt: str = ATTEMPT, n: int = 0
) -> None:
    store.put_same(plan.layout.segment(shard, attempt, n), lines_of(results))


def answer_shard(store: Store, plan: Plan, shard: str, answer: Answer = result) -> None:
    """A worker's whole work on a shard: attempt, one segment, results."""
    put_attempt(store, plan, shard, end=AttemptEnd.DONE)
    results = [answer(request) for request in requests_of(store, plan, shard)]
    put_segment(store, plan, shard, results)
    store.put_once(plan.layout.results(shard), lines_of(results))


def answer_all(store: Store, plan: Plan, answer: Answer = result) -> None:
    """Answer every shard of the job."""
    for entry in read_shards(store, plan):
        answer_shard(store, plan, entry.shard, answer)


def finish(store: Store, plan: Plan, *, force: bool = False) -> Publication:
    """Settle, merge, validate, publish."""
    settle_shards(store, plan, generation=1)
    merge_shards(store, plan)
    validate_results(store, plan)
    return publish_results(store, plan, force=force)


def publish_unseen(store: Store, plan: Plan, *, force: bool = False) -> Publication:
    """The same without the gate, which has its own tests and takes seconds to load."""
    settle_shards(store, plan, generation=1)
    merge_shards(store, plan)
    store.put_once(plan.layout.validation, b"{}")
    return publish_results(store, plan, force=force)
