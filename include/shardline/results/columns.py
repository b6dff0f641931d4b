"""The published rows of a shard, column by column: its ledger, and the answer to each request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardline.results.lines import Ended
from shardline.results.vectors import dimension_of, vector_array
from shardline.shards.ledger import ledger_name
from shardline.shards.parquet import read_batches

if TYPE_CHECKING:
    from shardline.plan import Plan

_COMMIT_DIGITS = 12
_OWN = ("document_id", "source", "row", "fingerprint", "duplicate_of")


def model_label(plan: Plan) -> str:
    """What the column `model` says: the model and the commit it was pinned to."""
    model = plan.job_file.engine.model
    if plan.model_commit in ("stub", model):
        return model
    name = model.rstrip("/").rsplit("/", 1)[-1] if "://" in model or model[0] == "/" else model
    return f"{name}@{plan.model_commit[:_COMMIT_DIGITS]}"


def published_batches(
    chain: Sequence[Plan], ledger: Path, ended: dict[str, Ended], schema: Any
) -> Iterator[Any]:
    """Published rows in the order of the ledger, in its batches.

    Each row says which job of the chain (the job, then its replays) has answered it, and with what.
    """
    import pyarrow as pa

    first = chain[0]
    labels = {plan.job_id: model_label(plan) for plan in chain}
    for batch in read_batches(ledger):
        ends = [ended[name] for name in batch.column("fingerprint").to_pylist()]
        alive = pa.array([end.reason is None for end in ends])
        kept, ends = batch.filter(alive), [end for end in ends if end.reason is None]
        if not ends:
            continue
        columns: dict[str, Any] = {name: kept.column(name) for name in _OWN}
        for name in first.job_file.corpus.carry:
            columns[name] = kept.column(ledger_name(name)).cast(schema.field(name).type, safe=False)
        jobs = [end.job_id or first.job_id for end in ends]
        columns |= {
            "output": [end.output for end in ends],
            "finish_reason": [end.finish_reason for end in ends],
            "prompt_tokens": [end.prompt_tokens for end in ends],
            "completion_tokens": [end.completion_tokens for end in ends],
            "model": [labels[job_id] for job_id in jobs],
            "job_id": jobs,
        }
        yield pa.record_batch(
            [_array(columns[field.name], field.type) for field in schema], schema=schema
        )


def _array(values: Any, kind: Any) -> Any:
    import pyarrow as pa

    if not isinstance(values, list):
        return values
    return pa.array(values, kind) if dimension_of(kind) is None else vector_array(values, kind)
