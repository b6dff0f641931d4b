"""One contender of the worker's benchmark: a process with its engine up, told what to run.

    python -m benchmarks.bench_worker_contender worker|run_batch|chat MODEL

Each line on standard input is a job to run (JSON: root, job_id, shard), each answer a line on
standard output that begins with `MARK`. The figures are of this process alone (RUSAGE_SELF) from
the call to its return: what the engine's own process burns is not in them, nor is start-up.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
import orjson
from uuid6 import uuid7

from benchmarks.bench_worker_load import ENGINE_ARGS, NAME
from shardline.attempts import new_attempt
from shardline.engines import vllm as our_engine
from shardline.engines.vllm_config import default_args, default_env, is_cpu
from shardline.job_blocks import EngineBlock
from shardline.plan import Plan, read_plan
from shardline.processes import end_with_parent, kill_children
from shardline.store import open_store
from shardline.worker.run import infer_shard
from shardline.worker.stop import Stop
from shardline.worker_settings import WorkerSettings

MARK = "@bench "


class Job(msgspec.Struct):
    """What to run: a shard of a planned job in a store on this machine."""

    root: str
    job_id: str
    shard: str
    output: str
    """The file that the peers write; the worker's results are in the store."""

    @property
    def shard_path(self) -> Path:
        """The shard file."""
        return Path(self.root) / self.plan.layout.shard(self.shard)

    @property
    def plan(self) -> Plan:
        """The job's plan."""
        return read_plan(open_store(self.root), self.job_id)


class Contender(Protocol):
    """Something that runs a shard file."""

    async def start(self) -> None:
        """Bring its engine up."""

    async def run(self, job: Job, folder: Path) -> None:
        """All rows of the shard; `folder` is scratch space."""


class Worker:
    """Ours: `infer_shard`, from the plan to the committed results, on an engine that stays up."""

    def __init__(self, args: dict[str, Any]) -> None:
        self._block = EngineBlock(model=args["model"], engine_args=ENGINE_ARGS)

    async def start(self) -> None:
        engine = our_engine.VllmEngine(self._block, "", NAME)
        await engine.start()
        # each attempt makes an engine of its own; here it is always this one
        our_engine.VllmEngine = lambda *_: _Resident(engine)  # type: ignore[assignment,misc]

    async def run(self, job: Job, folder: Path) -> None:
        attempt = new_attempt(str(uuid7()), job.shard, 1, pod_uid=None, node=None)
        store, settings = open_store(job.root), WorkerSettings()
        code = await infer_shard(store, job.job_id, attempt, folder, settings, Stop())
        assert code == 0, code


class _Resident:
    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class RunBatch:
    """vLLM's own batch runner."""

    def __init__(self, args: dict[str, Any]) -> None:
        self._args = args

    async def start(self) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        self._llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(**self._args), usage_context=UsageContext.OPENAI_BATCH_RUNNER
        )

    async def run(self, job: Job, folder: Path) -> None:
        from vllm.entrypoints.launchers.run_batch import make_arg_parser, run_batch
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        files = ["-i", str(job.shard_path), "-o", job.output]
        model = ["--model", self._args["model"], "--served-model-name", NAME]
        parsed = make_arg_parser(FlexibleArgumentParser()).parse_args([*files, *model])
        await run_batch(self._llm, parsed)


class Chat:
    """`LLM.chat`, all conversations in one call; it parses and writes the same files as the rest."""

    def __init__(self, args: dict[str, Any]) -> None:
        self._args = args

    async def start(self) -> None:
        from vllm import LLM

        self._llm = LLM(**self._args)

    async def run(self, job: Job, folder: Path) -> None:
        from vllm import SamplingParams

        lines = [orjson.loads(line) for line in job.shard_path.read_bytes().splitlines()]
        bodies = [line["body"] for line in lines]
        params = [SamplingParams(max_tokens=body["max_tokens"], temperature=0) for body in bodies]
        chats = [body["messages"] for body in bodies]
        written = []
        for line, end in zip(lines, self._llm.chat(chats, params, use_tqdm=False), strict=True):
            body = {"choices": [{"message": {"content": end.outputs[0].text}}]}
            answer = {"custom_id": line["custom_id"], "response": {"body": body}}
            written.append(orjson.dumps(answer))
        Path(job.output).write_bytes(b"\n".join(written))  # noqa: ASYNC240 - nobody else waits


CONTENDERS: dict[str, Callable[[dict[str, Any]], Contender]] = {
    "worker": Worker,
    "run_batch": RunBatch,
    "chat": Chat,
}


async def serve(contender: Contender) -> None:
    """Start, then run what comes on standard input until it ends."""
    await contender.start()
    _say({"pid": os.getpid()})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        job = msgspec.json.decode(line, type=Job)
        with tempfile.TemporaryDirectory() as name:
            cpu, wall = cpu_s(), time.perf_counter()
            await contender.run(job, Path(name))
            _say({"cpu_s": cpu_s() - cpu, "wall_s": time.perf_counter() - wall})


def cpu_s() -> float:
    """CPU seconds of this process so far, its threads too, its children not."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _say(answer: dict[str, Any]) -> None:
    print(MARK + json.dumps(answer), flush=True)


def main() -> None:
    """See the module."""
    kind, model = sys.argv[1:]
    end_with_parent(0)  # and its engine with it
    block = EngineBlock(model=model)
    args = default_args(block, NAME, is_cpu=is_cpu()) | ENGINE_ARGS
    env = default_env(is_cpu=is_cpu()) | {"HF_HUB_OFFLINE": "1"}
    if kind == "chat":  # else its engine would run in this process
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    os.environ.update(env)
    asyncio.run(serve(CONTENDERS[kind](args)))
    kill_children()
    os._exit(0)  # without vLLM's own farewells, which wait for an engine that is gone


if __name__ == "__main__":
    main()
