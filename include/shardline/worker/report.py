"""What a worker says while it works: a log line and a progress object per segment, and its log."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import psutil

from shardline.layout import JobLayout
from shardline.rows import Attempt, Progress
from shardline.store import Store
from shardline.worker.commit import Committed
from shardline.worker.patience import Patience
from shardline.worker.record import now

log = logging.getLogger(__name__)


class Reporter:
    """Writes the progress of one attempt; `rows_done` counts committed rows, resumed ones too."""

    def __init__(
        self, store: Store, layout: JobLayout, attempt: Attempt, patience: Patience, log_file: Path
    ) -> None:
        self._store, self._layout, self._attempt = store, layout, attempt
        self._patience, self._log_file = patience, log_file
        self._rates = (0.0, 0.0, 0.0)
        self.rows_total = self.rows_done = self.rows_dead = 0

    async def segment(self, committed: Committed, state: str) -> None:
        """One segment is in the store."""
        buffer, elapsed = committed.buffer, committed.elapsed_s
        self.rows_done += len(buffer.rows)
        self.rows_dead += buffer.dead
        self._rates = (
            len(buffer.rows) / elapsed,
            buffer.prompt_tokens / elapsed,
            buffer.completion_tokens / elapsed,
        )
        self._log_segment(committed)
        await self.say(state)

    def _log_segment(self, committed: Committed) -> None:
        metrics, buffer = self._attempt.metrics, committed.buffer
        log.info(
            "shard %s: attempt %s: segment %d committed, %d rows (%d dead), %d of %d done, "
            "%.1f rows/s, %.0f tok/s in, %.0f tok/s out, kv cache %s, preempted %s, prefix hits %s of %s",
            self._attempt.shard,
            self._attempt.attempt,
            committed.n,
            len(buffer.rows),
            buffer.dead,
            self.rows_done,
            self.rows_total,
            *self._rates,
            "?" if metrics.kv_cache_usage is None else f"{metrics.kv_cache_usage:.2f}",
            _shown(metrics.preemptions),
            _shown(metrics.prefix_cache_hits),
            _shown(metrics.prefix_cache_queries),
        )

    async def say(self, state: str) -> None:
        """Put the latest word, and the log so far, where people look."""
        attempt = self._attempt
        progress = Progress(
            shard=attempt.shard,
            attempt=attempt.attempt,
            generation=attempt.generation,
            at=now(),
            state=state,
            rows_total=self.rows_total,
            rows_done=self.rows_done,
            rows_dead=self.rows_dead,
            rows_per_s=self._rates[0],
            prompt_tokens_per_s=self._rates[1],
            completion_tokens_per_s=self._rates[2],
            metrics=attempt.metrics,
        )
        path = self._layout.progress(attempt.shard, attempt.attempt)
        await self._patience.call(self._store.write, path, msgspec.json.encode(progress))
        if self._log_file.exists():
            path = self._layout.log(attempt.shard, attempt.attempt)
            await self._patience.call(self._store.write, path, self._log_file.read_bytes())


def rss_mb() -> int:
    """Memory of this process and all below it, in MB."""
    me, total = psutil.Process(), 0
    for process in [me, *me.children(recursive=True)]:
        try:
            total += process.memory_info().rss
        except psutil.Error:  # it ended while we looked
            continue
    return total // 1_000_000


def _shown(count: int | None) -> str:
    return "?" if count is None else str(count)
