"""What a campaign runs: a corpus made from the seed, cut into shards by the real stages.

Every text is another one, no document is poison, and each asks for a long answer of few sequences,
so that most faults find rows in flight.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import faults_plugin
from shardline.cli.run_job import prepare_job
from shardline.cli.screen import Screen
from shardline.corpus.plan_job import plan_job
from shardline.job import JobFile
from shardline.job_reader import parse_job
from shardline.plan import Plan
from shardline.settings import Settings
from shardline.shards.manifest import read_shards
from shardline.store import Store, open_store

_WORDS = [
    "river",
    "stone",
    "market",
    "winter",
    "engine",
    "letter",
    "garden",
    "silver",
    "window",
    "captain",
    "yellow",
    "road",
]

WORKER = {
    "SHARDLINE_SEGMENT_S": "2",
    "SHARDLINE_STALL_S": "8",
    "SHARDLINE_ENGINE_START_S": "600",
}
"""Settings of the campaign's workers: short segments and an early stall timer show redone work."""


@dataclass(frozen=True)
class Job:
    """A planned job and where it lies. `near` reaches the store past the proxy."""

    store: Store
    near: Store
    plan: Plan
    shards: list[str]
    texts: list[str]


def make_texts(rows: int, seed: int) -> list[str]:
    """Different texts of 5 to 60 words."""
    chance = random.Random(f"texts {seed}")
    return [
        f"{n}: {' '.join(chance.choices(_WORDS, k=chance.randrange(5, 60)))}" for n in range(rows)
    ]


def write_corpus(folder: Path, texts: list[str]) -> Path:
    """The folder of the corpus. A file that holds it already stays: its calm run is done, too."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(texts))
    content, file = "".join(lines), folder / "part-0.jsonl"
    if not file.exists() or file.read_text(encoding="utf-8") != content:
        file.write_text(content, encoding="utf-8")
    return folder


def job_file(corpus: Path, local: Mapping[str, object], max_requests: int) -> JobFile:
    """The job file of a campaign; `max_requests` a shard."""
    given = {
        "name": "faults",
        "corpus": {"uri": str(corpus), "id": "id"},
        "messages": [{"role": "user", "content": "{{ text }}"}],
        "parameters": {"max_tokens": 256, "temperature": 0},
        "shards": {"max_requests": max_requests},
        "local": local,
    }
    return parse_job(given, folder=corpus)


def vllm_block(model: Path, max_num_seqs: int) -> dict[str, object]:
    """The real engine. In float32 an answer does not depend on what else is in the batch."""
    args = {"max_model_len": 512, "max_num_seqs": max_num_seqs, "dtype": "float32"}
    return {"model": str(model), "engine": "vllm", "engine_args": args}


def stub_block(latency_s: float) -> dict[str, object]:
    """An engine in the worker's own process that answers after a while."""
    args = {"max_num_seqs": 4, "latency_s": latency_s}
    return {"model": "stub", "engine": "stub", "engine_args": args}


def plan_shards(store: Store, near: Store, job: JobFile, texts: list[str]) -> Job:
    """Plan the job and cut it, as `shardline run` does."""
    plan = plan_job(job, store=near, settings=Settings(), partition=None, now=datetime.now(UTC))
    prepare_job(near, plan, Screen(is_silent=True))
    return Job(store, near, plan, [entry.shard for entry in read_shards(near, plan)], texts)


def install_plugin(folder: Path) -> str:
    """The fault plug-in as an installed distribution; the PYTHONPATH that shows it to workers."""
    metadata = folder / "shardline_faults-1.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: shardline-faults\nVersion: 1\n"
    )
    entry = f"[vllm.general_plugins]\nshardline_faults = {faults_plugin.__name__}:register\n"
    (metadata / "entry_points.txt").write_text(entry)
    include = Path(__file__).parents[1]
    return os.pathsep.join([str(folder), str(include)])


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """These variables for as long as the block runs; a store reads them when it is opened."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def open_at(uri: str, client: Mapping[str, str], port: int | None = None) -> Store:
    """A store at one endpoint of two: the server's own, or the proxy's port."""
    endpoint = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"} if port else {}
    with environment({**client, **endpoint}):
        return open_store(uri)
