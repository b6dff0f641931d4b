"""A campaign of random faults against real workers with a real engine, and the law afterwards.

    make faults N=60 SEED=1          python -m benchmarks.faults --faults 60 --seed 1

A calm run of the same documents comes first. Then the shards run on an S3 server that can be down,
by the runner that tasks and the command line use, while faults fall. When the last has fallen
everything may finish, and the files are counted by means of their own. The last line is one JSON
object. Exit code 1: a document was lost or doubled. SIGTERM: no further fault falls.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]

from benchmarks.faults_count import Count, compare_answers, count_law
from benchmarks.faults_deck import Deck, Fault, Kind, deal
from benchmarks.faults_job import (
    WORKER,
    Job,
    environment,
    install_plugin,
    job_file,
    make_texts,
    open_at,
    plan_shards,
    stub_block,
    vllm_block,
    write_corpus,
)
from benchmarks.faults_proxy import StoreProxy
from benchmarks.faults_run import Campaign
from benchmarks.faults_shots import Range
from benchmarks.faults_sum import Found, sum_up
from benchmarks.faults_watch import Watched
from samples.tiny_model import make_tiny_model
from tests.s3_server import s3_server

_BUCKET = "faults"
_FAULTS_PER_SHARD = 6
_MAX_ROUNDS = 20


class Faults:
    """One run of this program."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self.given, self.folder = given, folder
        self.began = time.monotonic()
        self.found = Found()
        self.is_stub = given.engine == "stub"
        model = make_tiny_model().resolve()
        self.block = stub_block(0.5) if self.is_stub else vllm_block(model, 4)
        self.calm_block = stub_block(0) if self.is_stub else vllm_block(model, 32)
        self.env = {**WORKER, "PYTHONPATH": install_plugin(folder / "plugin")}
        (folder / "logs").mkdir(exist_ok=True)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:7.1f} s  {text}", flush=True)

    def run(self) -> dict[str, Any]:
        among = [kind for kind in Kind if not (self.is_stub and kind.hits_engine)]
        deck = Deck(deal(self.given.faults, self.given.seed, among))
        self._stop_on_signal(deck)
        with s3_server(folder=self.folder / f"s3-{os.getpid()}") as client:
            port = int(client["AWS_ENDPOINT_URL"].rsplit(":", 1)[1])
            with StoreProxy(port) as proxy:
                boto3.client("s3", **_boto(client)).create_bucket(Bucket=_BUCKET)
                for number in range(1, _MAX_ROUNDS + 1):
                    self._round(number, deck, proxy, client)
                    if not len(deck):
                        break
        return sum_up(self.found, self.given, time.monotonic() - self.began)

    def _stop_on_signal(self, deck: Deck) -> None:
        def stop(number: int, frame: object) -> None:
            self.say("told to stop: no further fault falls, and what runs may finish")
            deck.clear()

        signal.signal(signal.SIGTERM, stop)

    def _round(self, number: int, deck: Deck, proxy: StoreProxy, client: dict[str, str]) -> None:
        """A job of its own; a campaign has as many as it takes to shoot every fault."""
        shards = max(2, round(len(deck) / _FAULTS_PER_SHARD))
        texts = make_texts(shards * self.given.rows, self.given.seed * 100 + number)
        corpus = write_corpus(self.folder / f"corpus-{number}", texts)
        self.say(f"round {number}: {len(texts)} documents, {len(deck)} faults to fall")
        calm = self._calm(number, corpus, texts)
        root = f"s3://{_BUCKET}/round-{number}"
        far = {**client, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"}
        with environment(client):  # what reads it besides the store would look for a region
            job = plan_shards(
                open_at(root, far),
                open_at(root, client),
                job_file(corpus, self.block, self.given.rows),
                texts,
            )
        ground = Range(deck, proxy, self._on_shot)
        with environment(far):
            campaign = Campaign(job, self.env, self.say, self.folder / "logs", ground)
            campaign.run(self.given.workers)
        self._count(campaign, calm)

    def _calm(self, number: int, corpus: Path, texts: list[str]) -> Count | None:
        """The same documents without a fault, as one shard on local disk."""
        if self.given.no_calm:
            return None
        store = open_at(str(self.folder / f"calm-{number}"), {})
        job = plan_shards(store, store, job_file(corpus, self.calm_block, 50_000), texts)
        Campaign(job, self.env, self.say, self.folder / "logs", None).run(1)
        return _count_files(job)

    def _on_shot(self, fault: Fault, target: Watched) -> None:
        self.found.shots.append(fault)
        late = ", answered" if fault.moment.value == "put" and fault.is_late else ""
        self.say(
            f"fault {len(self.found.shots)}/{self.given.faults} (card {fault.n}): {fault.kind} at "
            f"{fault.moment}{late}: {target.shard} attempt {target.number}, "
            f"{target.age_s:.1f} s in, {target.rows_done} of {target.rows_total or '?'} rows committed"
        )

    def _count(self, campaign: Campaign, calm: Count | None) -> None:
        count, found = _count_files(campaign.job), self.found
        found.counts.append(count)
        found.campaigns.append(campaign)
        found.doubled_ends += campaign.doubled_ends()
        if calm:
            mixed, differing = compare_answers(count.answers, calm.answers)
            found.mixed += mixed
            found.differing += differing
        for name, lines in (
            ("lost", count.lost),
            ("doubled", count.doubled),
            ("dead", count.dead),
            ("wrong", count.other),
            ("another row's answer", found.mixed),
            ("charged with progress", campaign.tally.charged_with_progress),
            ("outlived its worker", campaign.tally.orphans),
        ):
            for line in lines:
                self.say(f"{name}: {line}")


def _count_files(job: Job) -> Count:
    layout, near = job.plan.layout, job.near
    return count_law(
        job.texts,
        {shard: near.read(layout.shard(shard)) for shard in job.shards},
        {shard: near.read_or_none(layout.results(shard)) for shard in job.shards},
    )


def _boto(client: dict[str, str]) -> dict[str, str]:
    return {
        "endpoint_url": client["AWS_ENDPOINT_URL"],
        "aws_access_key_id": client["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": client["AWS_SECRET_ACCESS_KEY"],
        "region_name": client["AWS_REGION"],
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=60, help="how many fall (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="of the faults and the texts (1)")
    parser.add_argument("--rows", type=int, default=120, help="documents a shard (120)")
    parser.add_argument("--workers", type=int, default=2, help="shards that run at once (2)")
    parser.add_argument(
        "--engine", choices=["vllm", "stub"], default="vllm", help="stub: no engine faults, quick"
    )
    parser.add_argument("--no-calm", action="store_true", help="compare no answers")
    parser.add_argument(
        "--keep",
        type=Path,
        help="folder for logs and files, which stays; calm runs in it are used again",
    )
    given = parser.parse_args(arguments)
    logging.basicConfig(level="WARNING", stream=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="shardline-faults-") as name:
        folder = given.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        found = Faults(given, folder).run()
    print(json.dumps(found))
    return 1 if found["lost"] or found["doubled"] else 0


if __name__ == "__main__":
    sys.exit(main())
