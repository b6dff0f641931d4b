"""Runs the shards of a job as a runner does, while marksmen shoot; keeps what is to be counted."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults_count import count_ends, uncommitted
from benchmarks.faults_job import Job
from benchmarks.faults_shots import Marksman, Range
from benchmarks.faults_watch import Watched
from shardline.errors import StoreUnavailable
from shardline.runners.local import LocalWorker
from shardline.runners.retry import Verdict
from shardline.runners.shard import ShardOutcome, infer_shard

_LONGEST_DELAY_S = 2.0  # the decision says up to ten minutes; nobody here needs the pause
_MAX_GENERATIONS = 5

Say = Callable[[str], None]


@dataclass
class Redone:
    """What one attempt left undone: rows that were fed and are in no segment."""

    shard: str
    rows: list[str]
    seconds: float | None
    """For a killed worker: since its last segment was in the store, or its engine up."""


@dataclass
class Tally:
    """What the attempts of a campaign were."""

    attempts: int = 0
    charged: int = 0
    charged_with_progress: list[str] = field(default_factory=list)
    dead_shards: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    runner_outages: int = 0
    engine_restarts: int = 0
    rows_apart: int = 0
    """Rows that were fed again in groups or alone."""
    exit_codes: dict[str, int] = field(default_factory=dict)
    redone: list[Redone] = field(default_factory=list)
    longest_drain_s: float = 0.0


class Campaign:
    """All shards of a job to their end."""

    def __init__(
        self, job: Job, env: dict[str, str], say: Say, logs: Path, ground: Range | None
    ) -> None:
        self.job, self.env, self.say, self.logs, self.ground = job, env, say, logs, ground
        self.tally = Tally()
        self._ids = {shard: self._read_ids(shard) for shard in job.shards}
        self._lock = threading.Lock()

    def run(self, workers: int) -> None:
        with ThreadPoolExecutor(workers) as pool:
            for end in [pool.submit(self._run_shard, shard) for shard in self.job.shards]:
                end.result()

    def _run_shard(self, shard: str) -> None:
        generation, number = 1, 0
        while True:
            number += 1
            outcome = self._attempt(shard, number, generation)
            if outcome is None:
                continue
            decision = outcome.decision
            if decision.verdict is Verdict.DONE:
                return
            if decision.verdict is not Verdict.RETRY:
                # what a person does who has read why: clear the task, or resume the job
                self.say(f"  {shard}: {decision.verdict.value}: {decision.reason}; resumed")
                self.tally.dead_shards.append(f"{shard}: {decision.reason}")
                generation += 1
                if generation > _MAX_GENERATIONS:
                    return
            time.sleep(min(decision.delay_s, _LONGEST_DELAY_S))

    def _attempt(self, shard: str, number: int, generation: int) -> ShardOutcome | None:
        """One attempt; None when its runner lost the store, as a task that fails and is retried."""
        watched: list[Watched] = []
        marksmen: list[threading.Thread] = []
        log = (self.logs / f"{shard}.log").open("a", encoding="utf-8")

        def on_start(worker: LocalWorker) -> None:
            target = Watched(self.job, shard, number, worker)
            watched.append(target)
            log.write(f"== attempt {number}: {target.attempt}\n")
            if self.ground:
                marksman = Marksman(self.ground, target)
                marksmen.append(threading.Thread(target=marksman.run, name=f"marksman {shard}"))
                marksmen[0].start()

        outcome = None
        try:
            outcome = infer_shard(
                self.job.store,
                self.job.plan,
                shard,
                generation,
                on_line=lambda line: print(line, file=log, flush=True),
                on_start=on_start,
                env=self.env,
            )
        except StoreUnavailable as error:
            self.say(f"  {shard} attempt {number}: its runner lost the store: {error}")
            self.tally.runner_outages += 1
            time.sleep(1)
        finally:
            for target in watched:
                target.end()
            for thread in marksmen:
                thread.join()
            log.close()
        for target in watched:
            self._note_end(target, outcome)
        return outcome

    def _note_end(self, target: Watched, outcome: ShardOutcome | None) -> None:
        record = self._read_record(target)
        segments = self._segments(target.shard)
        mine = count_ends(c for name, c in segments.items() if name.startswith(target.attempt))
        earlier = count_ends(c for name, c in segments.items() if name[:36] < target.attempt)
        undone = uncommitted(record, self._ids[target.shard], count_ends(segments.values()))
        orphans = target.orphans()
        with self._lock:
            tally = self.tally
            tally.attempts += 1
            tally.redone.append(Redone(target.shard, undone, self._since_commit(target)))
            tally.orphans += [f"{target.shard} attempt {target.number}: {pid}" for pid in orphans]
            if target.up_after_s and self.ground:
                self.ground.starts_s.append(target.up_after_s)
            if record:
                tally.engine_restarts += record["counts"]["engine_restarts"]
                tally.rows_apart += sum(map(len, record["suspects"]))
                tally.longest_drain_s = max(tally.longest_drain_s, record["seconds"]["drain"])
            if outcome is None:
                return
            code = str(outcome.exit_code)
            tally.exit_codes[code] = tally.exit_codes.get(code, 0) + 1
            if outcome.decision.is_charged:
                tally.charged += 1
                if mine - earlier:
                    tally.charged_with_progress.append(f"{target.shard} attempt {target.number}")
        self.say(
            f"  {target.shard} attempt {target.number}: exit {outcome.exit_code} after "
            f"{target.age_s:.0f} s, {mine.total()} rows committed, {len(undone)} fed and not; "
            f"{outcome.decision.verdict.value}: {outcome.decision.reason[:90]}"
        )

    def _since_commit(self, target: Watched) -> float | None:
        if target.killed_at is None:
            return None
        puts = self.ground.proxy.last_puts if self.ground else {}
        moments = [at for path, at in puts.items() if f"/{target.attempt}-" in path]
        if target.up_after_s is not None:
            moments.append(target.began + target.up_after_s)
        return max(0.0, target.killed_at - max(moments)) if moments else 0.0

    def _read_record(self, target: Watched) -> dict[str, Any] | None:
        path = self.job.plan.layout.attempt(target.shard, target.attempt)
        found = self.job.near.read_or_none(path)
        return None if found is None else json.loads(found)

    def _segments(self, shard: str) -> dict[str, bytes]:
        near = self.job.near
        listed = near.list(self.job.plan.layout.segments(shard))
        return {found.path.rsplit("/", 1)[-1]: near.read(found.path) for found in listed}

    def doubled_ends(self) -> int:
        """Lines in segments beyond one for each request."""
        ends = [count_ends(self._segments(shard).values()) for shard in self.job.shards]
        return sum(count.total() - len(count) for count in ends)

    def _read_ids(self, shard: str) -> list[str]:
        content = self.job.near.read(self.job.plan.layout.shard(shard))
        return [json.loads(line)["custom_id"] for line in content.splitlines()]
