"""What is asked in the worker's benchmark: one shard file that every contender reads.

A shard file is an OpenAI batch input file, so `run_batch()` takes the worker's own bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.factories import make_job
from tests.worker.prepared import SHARD, Prepared, prepare_bodies

NAME = "bench"
ENGINE_ARGS = {
    "max_model_len": 1024,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "block_size": 32,
    "enforce_eager": True,
}
"""The same for all, beside the model's folder and the number type of this processor."""

_RULE = "Read the document, weigh what it says, and answer with a single word of your own. "


def short_chats(rows: int) -> Iterator[dict[str, Any]]:
    """Chats of about 50 tokens with 16 tokens of answer, no two alike."""
    for n in range(rows):
        yield _chat(16, {"role": "user", "content": f"Say a word about number {n}."})


def long_rows(rows: int) -> Iterator[dict[str, Any]]:
    """Rows of 2.5 kB that cost the engine little: one system prompt for all, one token of answer."""
    rule = _RULE * 27
    for n in range(rows):
        system = {"role": "system", "content": rule}
        yield _chat(1, system, {"role": "user", "content": f"Document {n:06d} of the corpus."})


def write_shard(folder: Path, model: Path, bodies: Iterator[dict[str, Any]]) -> Prepared:
    """A planned job with one shard in a store below `folder`."""
    local = {"model": str(model), "engine": "vllm", "engine_args": ENGINE_ARGS}
    return prepare_bodies(folder, bodies, make_job(folder, name=NAME, local=local))


def shard_path(prepared: Prepared) -> Path:
    """Where the shard file of a store on this machine is."""
    assert prepared.store.folder is not None
    return prepared.store.folder / prepared.plan.layout.shard(SHARD)


def _chat(max_tokens: int, *messages: dict[str, str]) -> dict[str, Any]:
    return {"messages": list(messages), "max_tokens": max_tokens, "temperature": 0}
