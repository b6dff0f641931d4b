"""A few documents beside their answers: always the same ones, spread over all lengths.

Shards are sorted by length, so evenly spaced lines of evenly spaced shards show short and long
documents alike. Only this file of the report reads texts, and only when the job file allows it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import orjson

from shardline.report.figures import Sample
from shardline.report.vectors import vector_text
from shardline.rows import Request, Result, ShardEntry
from shardline.shards.ledger import ledger_name, read_ledger

if TYPE_CHECKING:
    from shardline.job import JobFile
    from shardline.plan import Plan
    from shardline.store import Store

_MAX_SHARDS = 4
_SPARE = 4
"""Lines looked at for each sample that is wanted: some end as dead letters."""


class _Pair(NamedTuple):
    request: Request
    result: Result


def read_samples(store: Store, plan: Plan, done: Sequence[ShardEntry]) -> list[Sample]:
    """`report.samples` documents with a result, from shards whose results exist.

    None of embeddings: a vector says nothing to whoever looks at it.
    """
    job = plan.job_file
    if job.kind == "embedding":
        return []
    wanted, chosen = job.report.samples, spaced(done, _MAX_SHARDS)
    samples: list[Sample] = []
    for i, entry in enumerate(chosen):
        share = wanted * (i + 1) // len(chosen) - wanted * i // len(chosen)
        if share:
            with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
                samples += _of_shard(store, plan, entry, share, Path(scratch))
    return samples


def spaced(things: Sequence[Any], n: int) -> list[Any]:
    """At most n of them, evenly spaced, in order."""
    n = min(n, len(things))
    return [things[(2 * i + 1) * len(things) // (2 * n)] for i in range(n)]


def answer_text(job: JobFile, body: dict[str, Any]) -> str:
    """The answer as it is published: a choice unwrapped, a schema's answer as its JSON.

    A vector in short.
    """
    if job.kind == "embedding":
        return vector_text(body["data"][0]["embedding"])
    answer = body["choices"][0]
    content = answer.get("text") if job.kind == "completion" else answer["message"].get("content")
    content = content or ""
    if job.output.choices is None:
        return str(content)
    try:
        return str(orjson.loads(content)["choice"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return str(content)


def _of_shard(store: Store, plan: Plan, entry: ShardEntry, n: int, folder: Path) -> list[Sample]:
    lines = spaced(range(entry.requests), n * _SPARE)
    shard_file = store.fetch(plan.layout.shard(entry.shard), folder)
    results = store.fetch(plan.layout.results(entry.shard), folder)
    asked = _pick(shard_file, lines, Request)
    # results stand in the order of the shard, but the custom_id is what joins
    answered = {r.custom_id: r for r in _pick(results, lines, Result).values()}
    pairs = {
        line: _Pair(request, result)
        for line, request in asked.items()
        if (result := answered.get(request.custom_id)) is not None and result.response is not None
    }
    kept = {line: pairs[line] for line in spaced(sorted(pairs), n)}
    documents = _documents(store.fetch(plan.layout.ledger(entry.shard), folder), kept, plan)
    return [_sample(plan.job_file, pair, documents[line]) for line, pair in kept.items()]


def _pick(path: Path, lines: Sequence[int], kind: type[Any]) -> dict[int, Any]:
    wanted = set(lines)
    with path.open("rb") as file:
        return {
            n: msgspec.json.decode(line, type=kind) for n, line in enumerate(file) if n in wanted
        }


def _documents(ledger: Path, lines: dict[int, _Pair], plan: Plan) -> dict[int, dict[str, Any]]:
    """The original document of each line; its duplicates have the same text."""
    label = plan.job_file.report.compare_with
    columns = ["document_id", "source", "row", "duplicate_of", "line"]
    columns += [ledger_name(label)] if label and ledger_name(label) not in columns else []
    found: dict[int, dict[str, Any]] = {}
    for batch in read_ledger(ledger, columns):
        for i, line in enumerate(batch["line"]):
            if line in lines and batch["duplicate_of"][i] is None:
                found[line] = {name: values[i] for name, values in batch.items()}
    return found


def _sample(job: JobFile, pair: _Pair, document: dict[str, Any]) -> Sample:
    assert pair.result.response is not None
    body = pair.result.response.body
    usage = body.get("usage") or {}
    label = document.get(ledger_name(job.report.compare_with)) if job.report.compare_with else None
    return Sample(
        document_id=document["document_id"],
        source=document["source"],
        row=document["row"],
        text=document_text(job, last_text(pair.request.body)),
        output=answer_text(job, body),
        finish_reason=body["choices"][0].get("finish_reason"),
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
        label=None if label is None else label_text(label),
    )


def last_text(body: dict[str, Any]) -> str:
    """The last message of a request, or its prompt or input."""
    if "messages" in body:
        return str(body["messages"][-1]["content"])
    return str(body.get("prompt") or body.get("input"))


def document_text(job: JobFile, content: str) -> str:
    """The part of the last message that is the document's: without what all documents share."""
    pieces = job.templates[-1].pieces
    before = pieces[0] if pieces and isinstance(pieces[0], str) else ""
    after = pieces[-1] if len(pieces) > 1 and isinstance(pieces[-1], str) else ""
    return content.removeprefix(before).removesuffix(after) if len(pieces) > 1 else content


def label_text(label: object) -> str:
    """A carried value as an output would say it."""
    return str(label).lower() if isinstance(label, bool) else str(label)
