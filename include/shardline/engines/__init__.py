"""The engines a worker can run: one file each, chosen by the job file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardline.engines.base import Engine
from shardline.job import JobFile
from shardline.job_blocks import EngineBlock
from shardline.plan import Plan
from shardline.rows import Request

_GOOD: dict[str, dict[str, Any]] = {
    "chat": {
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 1,
        "temperature": 0,
    },
    "completion": {"prompt": "Hello", "max_tokens": 1, "temperature": 0},
    "embedding": {"input": "Hello", "encoding_format": "base64"},
}


def known_good(job: JobFile) -> Request:
    """The smallest request of the job's kind, which any engine that is well can do."""
    return Request("known-good", "POST", job.form.url, _GOOD[job.kind])


def engine_maker(plan: Plan, slots: int | None = None) -> Callable[[], Engine]:
    """What makes a new engine for a job: at the start, and again after each death.

    Args:
        slots: an upper bound of max_num_seqs, after an attempt ran out of memory.
    """
    job = plan.job_file
    block = _bounded(job.engine, slots)
    if block.engine == "stub":
        from shardline.engines.stub import StubEngine

        return lambda: StubEngine(block.engine_args)
    from shardline.engines.vllm_stats import Counters

    counters = Counters()  # of all engines that this maker makes
    if job.kind == "embedding":
        from shardline.engines.vllm_pooling import VllmPoolingEngine

        return lambda: VllmPoolingEngine(block, plan.model_commit, job.name, counters)
    from shardline.engines.vllm import VllmEngine

    return lambda: VllmEngine(block, plan.model_commit, job.name, job.kind, counters)


def _bounded(block: EngineBlock, slots: int | None) -> EngineBlock:
    if slots is None:
        return block
    bound = min(block.engine_args.get("max_num_seqs", slots), slots)
    return block.model_copy(update={"engine_args": {**block.engine_args, "max_num_seqs": bound}})
