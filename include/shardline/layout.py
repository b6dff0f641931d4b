"""The name of every object of a job, relative to the root. Nothing else builds a path.

Planned names make retries safe: whoever writes or reads an object computes its name from the plan,
and never takes what a listing happens to show (PROTOCOL 3, 5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
PARTITION = re.compile(r"[a-z0-9](?:[a-z0-9_.-]*[a-z0-9])?", re.IGNORECASE)
NO_PARTITION = "all"


@dataclass(frozen=True)
class JobLayout:
    """Names below `jobs/{job_id}/`. See DESIGN's object layout for who writes and who reads."""

    job_id: str

    @property
    def prefix(self) -> str:
        return f"jobs/{self.job_id}/"

    def _at(self, name: str) -> str:
        return self.prefix + name

    # prepare
    @property
    def plan(self) -> str:
        return self._at("plan.json")

    @property
    def settings(self) -> str:
        """The fields of the newest start's job file that do not decide what the job is."""
        return self._at("settings.json")

    def scan_report(self, split: int) -> str:
        return self._at(f"scan/{split:05d}.json")

    def spill(self, split: int, piece: int = 0) -> str:
        """A split's spill is one stream of bytes, kept in pieces that fit in memory."""
        return self._at(f"spill/{split:05d}-{piece:04d}.bin")

    def ids(self, split: int, piece: int = 0) -> str:
        return self._at(f"spill/{split:05d}-{piece:04d}.ids")

    @property
    def id_report(self) -> str:
        return self._at("scan/check_ids.json")

    def rejected(self, split: int) -> str:
        return self._at(f"rejected/{split:05d}.jsonl")

    @property
    def rejected_ids(self) -> str:
        return self._at("rejected/check_ids.jsonl")

    @property
    def conflicts(self) -> str:
        """Positions of the rows that check_ids rejected, where there are any."""
        return self._at("spill/conflicts.bin")

    # shards
    def bucket_report(self, bucket_set: int) -> str:
        return self._at(f"scan/cut-{bucket_set:05d}.json")

    @property
    def shards_prefix(self) -> str:
        return self._at("shards/")

    def shard(self, shard: str) -> str:
        return self._at(f"shards/{shard}.jsonl")

    def sidecar(self, shard: str) -> str:
        return self._at(f"shards/{shard}.json")

    def ledger(self, shard: str) -> str:
        return self._at(f"ledger/{shard}.parquet")

    @property
    def shard_table(self) -> str:
        return self._at("shards.parquet")

    @property
    def manifest(self) -> str:
        return self._at("manifest.json")

    @property
    def ledgers_prefix(self) -> str:
        return self._at("ledger/")

    # replaying: numbers in the folder of the parent, all else in that of the replay
    @property
    def replays(self) -> str:
        return self._at("replays/")

    def replay(self, n: int) -> str:
        return self._at(f"replays/{n}.json")

    @property
    def abandoned(self) -> str:
        return self._at("abandoned")

    @property
    def replay_cut(self) -> str:
        return self._at("replay.json")

    def harvest(self, shard: str) -> str:
        """What a replay found in the segments of a shard of its parent, in place of error lines."""
        return self._at(f"harvest/{shard}.jsonl")

    # running
    @property
    def generations(self) -> str:
        return self._at("generations/")

    def generation(self, n: int) -> str:
        return self._at(f"generations/{n}.json")

    def cancel(self, generation: int) -> str:
        return self._at(f"cancel/{generation}")

    @property
    def attempts_prefix(self) -> str:
        return self._at("attempts/")

    def attempts(self, shard: str) -> str:
        return self._at(f"attempts/{shard}/")

    def attempt(self, shard: str, attempt: str) -> str:
        return self._at(f"attempts/{shard}/{attempt}.json")

    def segments(self, shard: str) -> str:
        return self._at(f"segments/{shard}/")

    def segment(self, shard: str, attempt: str, n: int) -> str:
        return self._at(f"segments/{shard}/{attempt}-{n:06d}.jsonl")

    @property
    def progress_prefix(self) -> str:
        return self._at("progress/")

    def progress(self, shard: str, attempt: str) -> str:
        return self._at(f"progress/{shard}~{attempt}.json")

    def log(self, shard: str, attempt: str) -> str:
        return self._at(f"logs/{shard}/{attempt}.log")

    @property
    def results_prefix(self) -> str:
        return self._at("results/")

    def results(self, shard: str) -> str:
        return self._at(f"results/{shard}.jsonl")

    @property
    def dead_letters_prefix(self) -> str:
        return self._at("dead_letters/")

    def dead_letters(self, shard: str) -> str:
        return self._at(f"dead_letters/{shard}.jsonl")

    # results
    @property
    def published_schema(self) -> str:
        """The published columns of the job, decided before a model runs."""
        return self._at("schema.json")

    @property
    def dimension(self) -> str:
        """How long the vectors of an embedding job are, where its first one decided it."""
        return self._at("dimension.json")

    def merged(self, shard: str) -> str:
        """What merge counted of one shard: a retried merge skips it."""
        return self._at(f"merged/{shard}.json")

    @property
    def settlement(self) -> str:
        return self._at("settlement.json")

    @property
    def merge_report(self) -> str:
        return self._at("merge.json")

    @property
    def validation(self) -> str:
        return self._at("validation.json")

    @property
    def data_docs(self) -> str:
        return self._at("data_docs/")

    @property
    def report_json(self) -> str:
        return self._at("report.json")

    @property
    def report_html(self) -> str:
        return self._at("report.html")


def shard_id(bucket: int, k: int) -> str:
    """The name of the k-th shard of a bucket. Sorting names sorts by (bucket, k)."""
    return f"shard-{bucket:05d}-{k:03d}"


def replay_id(parent: str, n: int) -> str:
    """The job id of a job's n-th replay; of number 0, its own."""
    return f"{parent}-r{n}" if n else parent


def replay_number(job_id: str, parent: str) -> int | None:
    """0 for the parent, n for its n-th replay, None for any other job."""
    if job_id == parent:
        return 0
    n = job_id.removeprefix(f"{parent}-r")
    return int(n) if n != job_id and n.isascii() and n.isdecimal() else None


def shard_of(path: str) -> str:
    """The shard that a `results/` or `progress/` object belongs to."""
    return path.rsplit("/", 1)[-1].removesuffix(".jsonl").split("~")[0]


def sidecar_names(paths: Iterable[str]) -> set[str]:
    """The shards that a listing of `shards/` shows."""
    names = (path.rsplit("/", 1)[-1] for path in paths)
    return {name.removesuffix(".json") for name in names if name.endswith(".json")}


def published(name: str) -> str:
    """The folder of a published Delta table."""
    return f"published/{name}"


def published_file(job_id: str, partition: str | None, number: int) -> str:
    """The name of a merged file, relative to its table: immutable, of one job, in its partition."""
    return f"dt={partition or NO_PARTITION}/{job_id}-part-{number:06d}.parquet"
