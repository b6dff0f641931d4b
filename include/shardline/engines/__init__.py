"""The engines a worker can run: one file each, chosen by the job file."""

from __future__ import annotations

from collections.abc import Callable

from shardline.engines.base import Engine
from shardline.plan import Plan


def engine_maker(plan: Plan) -> Callable[[], Engine]:
    """What makes a new engine for a job: at the start, and again after each death."""
    job = plan.job_file
    block = job.engine
    if block.engine == "stub":
        from shardline.engines.stub import StubEngine

        return lambda: StubEngine(block.engine_args)
    from shardline.engines.vllm import VllmEngine

    return lambda: VllmEngine(block, plan.model_commit, job.name)
