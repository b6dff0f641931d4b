"""What an attempt says of itself: its record, and a progress object, a line and the log per segment.

Rows stand in the record before they reach the engine, so that whoever comes after a worker that
vanished knows what was in flight (PROTOCOL 9). One writer; writes are serialised, so that a slow
older one can never land on top of a newer one.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from shardline.attempts import now, write_attempt
from shardline.isolation import as_ranges
from shardline.processes import rss_mb
from shardline.reasons import ExitCode
from shardline.rows import Progress
from shardline.shard_file import Row
from shardline.worker.commit import Segment
from shardline.worker.desk import Desk

log = logging.getLogger(__name__)


class Journal:
    """`rows_done` and `rows_dead` count committed rows, resumed ones too."""

    def __init__(self, desk: Desk) -> None:
        self._desk, self._attempt = desk, desk.attempt
        self.rows_total = self.rows_done = self.rows_dead = 0
        self._rates = (0.0, 0.0, 0.0)  # rows, prompt tokens, completion tokens a second
        self._fed: set[int] = set()
        self._lock = asyncio.Lock()

    async def save(self) -> None:
        """Bring the record in the store up to date, even if the caller is cancelled meanwhile."""
        await asyncio.shield(asyncio.create_task(self._save()))

    async def _save(self) -> None:
        async with self._lock:
            store, layout = self._desk.store, self._desk.layout
            await self._desk.patience.call(write_attempt, store, layout, self._attempt)

    async def reserve(self, rows: list[Row]) -> list[Row]:
        """Write down that these rows are about to be fed."""
        self._fed.update(row.number for row in rows)
        self._attempt.fed = as_ranges(self._fed)
        await self.save()
        return rows

    async def set_apart(self, rows: list[Row]) -> list[Row]:
        """Write down a group that is about to be fed alone."""
        self._attempt.suspects.append([row.number for row in rows])
        await self.save()
        return rows

    async def end(self, code: ExitCode, message: str) -> None:
        """The last word."""
        attempt = self._attempt
        attempt.end, attempt.exit_code, attempt.message = code.attempt_end, int(code), message
        attempt.ended_at = now()
        await self.save()
        await self.say("ended")

    async def segment(self, cut: Segment) -> None:
        """A segment is in the store: count it, and say so."""
        attempt, metrics = self._attempt, self._attempt.metrics
        self.rows_done, self.rows_dead = self.rows_done + cut.rows, self.rows_dead + cut.dead
        tokens = (cut.prompt_tokens, cut.completion_tokens)
        self._rates = (cut.rows / cut.elapsed_s, *(n / cut.elapsed_s for n in tokens))  # type: ignore[assignment]
        metrics.peak_rss_mb = max(metrics.peak_rss_mb or 0, rss_mb())
        hits = f"{metrics.prefix_cache_hits} of {metrics.prefix_cache_queries}"
        seen = f"kv cache {metrics.kv_cache_usage}, preempted {metrics.preemptions}, prefix hits {hits}"
        text = "shard %s: attempt %s: segment %d committed, %d rows (%d dead), %d of %d done, "
        text += "%.1f rows/s, %.0f tok/s in, %.0f tok/s out, %s"
        counts = (cut.n, cut.rows, cut.dead, self.rows_done, self.rows_total)
        log.info(text, attempt.shard, attempt.attempt, *counts, *self._rates, seen)
        await self.save()
        await self.say("draining" if self._desk.stop.draining.is_set() else "running")

    async def say(self, state: str) -> None:
        """Put the latest word, and the log so far, where people look."""
        attempt, layout, store = self._attempt, self._desk.layout, self._desk.store
        who = (attempt.shard, attempt.attempt, attempt.generation)
        rows = (self.rows_total, self.rows_done, self.rows_dead)
        progress = Progress(*who, now(), state, *rows, *self._rates, attempt.metrics)
        path = layout.progress(attempt.shard, attempt.attempt)
        await self._desk.patience.call(store.write, path, msgspec.json.encode(progress))
        log_file = self._desk.folder / "log"
        if log_file.exists():
            path = layout.log(attempt.shard, attempt.attempt)
            await self._desk.patience.call(store.write, path, log_file.read_bytes())
