"""A planned job with one shard in a store, made without the rooms before it; and ways to run it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import orjson
from blake3 import blake3

from shardline.job import JobFile
from shardline.plan import Plan, encode_plan, make_job_id, timestamp
from shardline.rows import Attempt, Progress, Result, ShardEntry
from shardline.runners.local import worker_environment
from shardline.store import Store
from tests.factories import make_job, make_store

SHARD = "shard-00000-000"

QUICK = {
    "SHARDLINE_SEGMENT_S": "0.2",
    "SHARDLINE_STALL_S": "0.5",
    "SHARDLINE_STORE_PATIENCE_S": "60",
    "SHARDLINE_DRAIN_S": "60",
}

# A worker that is to be met at its work has half a minute of it, whoever comes late; the next, which
# is given all slots, has done the same rows in a second.
LONG = {"model": "stub", "engine": "stub", "engine_args": {"latency_s": 0.1, "max_num_seqs": 100}}
ONE_BY_ONE = {"SHARDLINE_MAX_NUM_SEQS": "1"}


@dataclass(frozen=True)
class Prepared:
    """One shard of one planned job."""

    store: Store
    plan: Plan
    ids: list[str]

    @property
    def job_uri(self) -> str:
        return f"{self.store.uri}/jobs/{self.plan.job_id}"

    def results(self) -> list[Result]:
        return read_results(self.store, self.plan.layout.results(SHARD))

    def reasons(self) -> dict[int, str]:
        """Line number → reason, for the rows that are dead letters in results."""
        lines = enumerate(self.results())
        return {row: line.error.code for row, line in lines if line.error}

    def committed(self) -> list[str]:
        """custom_ids in segments, in the order of the segments; doubles are kept."""
        listed = list(self.store.list(self.plan.layout.segments(SHARD)))
        return [line.custom_id for found in listed for line in read_results(self.store, found.path)]

    def attempts(self) -> list[Attempt]:
        listed = self.store.list(self.plan.layout.attempts(SHARD))
        return [msgspec.json.decode(self.store.read(f.path), type=Attempt) for f in listed]

    def progress(self) -> list[Progress]:
        listed = self.store.list(self.plan.layout.progress_prefix)
        return [msgspec.json.decode(self.store.read(f.path), type=Progress) for f in listed]

    def start(
        self, *, shard: str = SHARD, generation: int = 1, env: Mapping[str, str] | None = None
    ) -> Worker:
        """A worker as a real process."""
        return Worker(self, shard, generation, {**QUICK, **(env or {})})

    def run(self, *, generation: int = 1, env: Mapping[str, str] | None = None) -> int:
        """A worker as a real process, to its end; its exit code."""
        return self.start(generation=generation, env=env).wait()


class Worker:
    """A worker process whose log is read as it comes."""

    def __init__(
        self, prepared: Prepared, shard: str, generation: int, env: Mapping[str, str]
    ) -> None:
        command = [sys.executable, "-m", "shardline.worker", "--job", prepared.job_uri]
        command += ["--shard", shard, "--generation", str(generation)]
        self.process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env=worker_environment(env),
            start_new_session=True,
        )
        self.lines: list[str] = []

    def read_until(self, text: str) -> str:
        """Wait for a log line that holds `text`."""
        assert self.process.stderr
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if text in line:
                return line
        raise AssertionError(f"no line with {text!r} in:\n" + "\n".join(self.lines))

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def wait(self) -> int:
        assert self.process.stderr
        with self.process.stderr:
            self.lines += [line.rstrip("\n") for line in self.process.stderr]
        return self.process.wait(60)


def read_results(store: Store, path: str) -> list[Result]:
    return [msgspec.json.decode(line, type=Result) for line in store.read(path).splitlines()]


def prepare(
    folder: Path, texts: Iterable[str], *, store: Store | None = None, **overrides: Any
) -> Prepared:
    """Plan a job over these texts as one shard, one line per text in their order."""
    job = make_job(folder, **overrides)
    return prepare_bodies(folder, [make_body(job, text) for text in texts], job, store)


def prepare_bodies(
    folder: Path, bodies: Iterable[dict[str, Any]], job: JobFile, store: Store | None = None
) -> Prepared:
    """The same with bodies of one's own."""
    store, plan = store or make_store(folder), make_plan(job)
    return Prepared(store, plan, put_bodies(store, plan, SHARD, bodies))


def put_bodies(store: Store, plan: Plan, shard: str, bodies: Iterable[dict[str, Any]]) -> list[str]:
    """Put a shard of these request bodies; its custom_ids."""
    job = plan.job_file
    lines, ids = [], []
    for number, body in enumerate(bodies):
        canonical = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
        ids.append(f"{blake3(canonical).hexdigest(12)}{number:08x}")
        line = {
            "custom_id": ids[-1],
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": job.name, **body},
        }
        lines.append(orjson.dumps(line) + b"\n")
    put_shard(store, plan, b"".join(lines), len(lines), shard)
    return ids


def make_plan(job: JobFile) -> Plan:
    return Plan(
        job_id=make_job_id(job, None, "stub", []),
        job=job.model_dump(mode="json"),
        partition=None,
        planned_at=timestamp(datetime(2026, 1, 1, tzinfo=UTC)),
        model_commit="stub",
        inputs=[],
        skipped=[],
        splits=[],
        bounds=[],
        bucket_sets=[(0, 1)],
        version="0",
    )


def make_body(job: JobFile, text: str) -> dict[str, Any]:
    messages = [
        {"role": m.role, "content": m.template.render({"text": text})} for m in job.messages
    ]
    body: dict[str, Any] = {"messages": messages, **job.parameters}
    if job.output.choices:
        schema = {
            "type": "object",
            "properties": {"choice": {"type": "string", "enum": list(job.output.choices)}},
            "required": ["choice"],
            "additionalProperties": False,
        }
        body["response_format"] = make_form("choice", schema)
    elif job.output.json_schema:
        body["response_format"] = make_form("output", job.output.json_schema)
    return body


def make_form(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {"name": name, "strict": True, "schema": dict(schema)},
    }


def put_shard(store: Store, plan: Plan, content: bytes, rows: int, shard: str = SHARD) -> None:
    entry = ShardEntry(
        shard=shard,
        requests=rows,
        documents=rows,
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        min_length=1,
        max_length=1,
    )
    store.put_same(plan.layout.plan, encode_plan(plan))
    store.put_same(plan.layout.shard(shard), content)
    store.put_same(plan.layout.sidecar(shard), msgspec.json.encode(entry))


def run_until_done(prepared: Prepared, at_most: int = 12, **env: str) -> list[int]:
    """Run worker after worker until one ends well; the exit codes."""
    codes: list[int] = []
    while len(codes) < at_most and (not codes or codes[-1] != 0):
        codes.append(prepared.run(env=env))
    return codes
