"""How many engine steps the worker's feeding costs, on slots that are simulated.

The worker is the real one: shard file, window, order, segments, work-ahead. Only the engine is not:
it has slots, and a step gives each running request one token, as continuous batching does. A step
is taken when the worker has had the time to hand over what it has, so the count does not depend on
how fast this machine is. Ideal is tokens / slots: every slot at work in every step.

* 512 requests with 8, 32, 128 or 400 tokens (70/20/8/2 %) on 32 slots, beside "all at once, in the
  order of the file"; once with `max_tokens` telling the length, once without a hint.
* 8 shards of 5,000 rows, lognormal lengths (median 60, at most 2,048) on 1,024 slots, one shard after
  the other: each drained before the next, and with work-ahead; with hints and without. Without them
  no order can reach the ideal: a row of 2,048 tokens that happens to begin late makes a tail. The
  same rows, all handed over at once in the order of the files, show how much of that is left to do.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import math
import random
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from uuid6 import uuid7

from shardline.attempts import new_attempt
from shardline.engines.base import Answer
from shardline.reasons import ExitCode
from shardline.rows import EngineMetrics, Request
from shardline.worker import drive
from shardline.worker.run import infer_shard
from shardline.worker.stop import Stop
from shardline.worker_settings import WorkerSettings
from tests.factories import make_job, make_store
from tests.worker.prepared import Prepared, make_plan, put_bodies

_QUIET_S = 0.002
_WORDS = [
    "the",
    "a",
    "data",
    "file",
    "error",
    "value",
    "list",
    "time",
    "name",
    "return",
    "class",
    "import",
    "self",
    "path",
    "string",
    "index",
    "number",
    "open",
    "read",
    "write",
    "test",
]


class Steps:
    """The steps of a machine: they go on from one attempt's engine to the next one's."""

    def __init__(self) -> None:
        self.taken = 0


class SlotEngine:
    """An engine whose requests take as many steps as their text says."""

    def __init__(self, steps: Steps, slots: int) -> None:
        self.max_num_seqs, self._steps = slots, steps
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._left: dict[asyncio.Future[None], int] = {}
        self._running: dict[asyncio.Future[None], int] = {}
        self._arrivals = 0
        self._stepping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._stepping = asyncio.create_task(self._step_on())

    def prepare(self, requests: Sequence[Request]) -> list[int]:
        return [length_of(request.body) for request in requests]

    async def generate(self, custom_id: str, prepared: int) -> Answer:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left[done] = prepared
        self._waiting.append(done)
        self._arrivals += 1
        try:
            await done
        finally:
            self._left.pop(done, None)
            self._running.pop(done, None)
        return Answer("x", "stop", 1, prepared)

    async def _step_on(self) -> None:
        while True:
            await self._settle()
            while self._waiting and len(self._running) < self.max_num_seqs:
                request = self._waiting.popleft()
                if request in self._left:  # else it was dropped while it waited
                    self._running[request] = self._left[request]
            if not self._running:
                continue
            # as many steps at once as change nothing but the count
            n = min(self._running.values())
            self._steps.taken += n
            for request in list(self._running):
                self._running[request] -= n
                if not self._running[request]:
                    del self._running[request]
                    request.set_result(None)

    async def _settle(self) -> None:
        """Until the worker has nothing more to hand over, or the slots are full."""
        while True:
            before = self._arrivals
            for _ in range(4):
                await asyncio.sleep(0)
            if len(self._running) + len(self._waiting) >= self.max_num_seqs:
                return
            await asyncio.sleep(_QUIET_S)
            if self._arrivals == before:
                await asyncio.sleep(_QUIET_S * 4)
                if self._arrivals == before:
                    return

    def beat(self) -> int:
        return self._steps.taken

    def metrics(self) -> EngineMetrics:
        return EngineMetrics(max_num_seqs=self.max_num_seqs, engine_steps=self._steps.taken)

    async def stop(self) -> None:
        if self._stepping:
            self._stepping.cancel()


def length_of(body: dict[str, Any]) -> int:
    """The number of tokens that a request will take: its text says so."""
    return int(body["messages"][-1]["content"].split()[0])


def bodies(lengths: Sequence[int], *, is_hinted: bool) -> Iterator[dict[str, Any]]:
    """Requests of equal size, so that without a hint nothing but the file's order is known."""
    for n, length in enumerate(lengths):
        message = {"role": "user", "content": f"{length:06d} {n:08d}"}
        yield {"messages": [message], "max_tokens": length if is_hinted else 4_096}


def mixed_lengths() -> list[int]:
    """512 outputs; a random draw for each prompt comes first, as where the case was first measured."""
    chance, lengths = random.Random(1), []
    for _ in range(512):
        for _ in range(chance.randint(5, 60)):
            chance.choice(_WORDS)
        lengths.append(chance.choices([8, 32, 128, 400], [70, 20, 8, 2])[0])
    return lengths


def lognormal_lengths(rows: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [min(2_048, max(1, int(chance.lognormvariate(4.1, 0.9)))) for _ in range(rows)]


def steps_in_order(lengths: Sequence[int], slots: int) -> int:
    """Steps when all are handed over at once, in this order."""
    free_at = [0] * slots
    for n in lengths:
        heapq.heapreplace(free_at, free_at[0] + n)
    return max(free_at)


def feed_shards(
    shards: Sequence[Sequence[int]], slots: int, *, is_hinted: bool = False, **settings: Any
) -> int:
    """The steps that the real worker costs for these shards, one attempt after the other."""
    steps = Steps()
    with tempfile.TemporaryDirectory(prefix="shardline-bench-") as name:
        folder = Path(name)
        prepared = _prepare(folder, shards, is_hinted=is_hinted)
        make = drive.engine_maker
        drive.engine_maker = lambda plan, bound: lambda: SlotEngine(steps, slots)
        try:
            for number in range(len(shards)):
                _attempt(prepared, _shard(number), folder, WorkerSettings(**settings))
        finally:
            drive.engine_maker = make
    return steps.taken


def _shard(number: int) -> str:
    return f"shard-00000-{number:03d}"


def _prepare(folder: Path, shards: Sequence[Sequence[int]], *, is_hinted: bool) -> Prepared:
    engine = {"model": "slots", "engine": "stub", "engine_args": {}}
    store, plan = make_store(folder), make_plan(make_job(folder, local=engine))
    for number, lengths in enumerate(shards):
        put_bodies(store, plan, _shard(number), bodies(lengths, is_hinted=is_hinted))
    return Prepared(store, plan, [])


def _attempt(prepared: Prepared, shard: str, folder: Path, settings: WorkerSettings) -> None:
    scratch = folder / f"scratch-{shard}"
    scratch.mkdir()
    attempt = new_attempt(str(uuid7()), shard, 1)
    work = infer_shard(prepared.store, prepared.plan.job_id, attempt, scratch, settings, Stop())
    code = asyncio.run(work)
    if code is not ExitCode.DONE:
        raise RuntimeError(f"shard {shard}: the worker ended with {code!r}")


def measure(say: Callable[[str], None] = lambda line: None) -> dict[str, float]:
    """The figures of this module's docstring, as ratios to the ideal."""
    lengths, slots = mixed_lengths(), 32
    ideal, file_order = math.ceil(sum(lengths) / slots), steps_in_order(lengths, slots)
    hinted = feed_shards([lengths], slots, is_hinted=True)
    plain = feed_shards([lengths], slots)
    say(f"512 requests, {slots} slots: ideal {ideal}, file order {file_order} steps")
    say(f"  hinted {hinted}, without a hint {plain}")

    shards, slots = [lognormal_lengths(5_000, seed) for seed in range(8)], 1_024
    tail_ideal = sum(map(sum, shards)) / slots
    at_once = steps_in_order([n for lengths in shards for n in lengths], slots)
    say(f"8 shards of 5,000 rows, {slots} slots: ideal {tail_ideal:.0f} steps")
    say(f"  all at once, in the order of the files {at_once}")
    tail: dict[str, int] = {}
    for name, is_hinted in (("hinted", True), ("unhinted", False)):
        tail[f"drained_{name}"] = feed_shards(shards, slots, is_hinted=is_hinted)
        tail[name] = feed_shards(shards, slots, is_hinted=is_hinted, work_ahead_s=3_600)
        say(f"  {name}: each drained {tail[f'drained_{name}']}, with work-ahead {tail[name]}")
    return {
        "steps_ideal": ideal,
        "steps_file_order": file_order,
        "steps_hinted": hinted,
        "steps_unhinted": plain,
        "steps_vs_ideal_hinted": round(hinted / ideal, 3),
        "steps_vs_file_order_unhinted": round(plain / file_order, 3),
        "tail_drained_vs_ideal": round(tail["drained_hinted"] / tail_ideal, 3),
        "tail_vs_ideal": round(tail["hinted"] / tail_ideal, 3),
        "tail_drained_vs_ideal_unhinted": round(tail["drained_unhinted"] / tail_ideal, 3),
        "tail_vs_ideal_unhinted": round(tail["unhinted"] / tail_ideal, 3),
        "tail_at_once_vs_ideal_unhinted": round(at_once / tail_ideal, 3),
    }


def main() -> None:
    figures = measure(lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
