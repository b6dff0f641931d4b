"""Read a job's status from the store, cheaply enough to poll (PROTOCOL 23).

Two listings of flat names say which shards are done and who works. A progress object is fetched only
when its tag has changed, so a poll costs the listings and one read for each live worker.
"""

from __future__ import annotations

import io
from datetime import datetime

import msgspec

from shardline.layout import shard_of
from shardline.plan import Plan
from shardline.rows import Progress, ShardEntry
from shardline.segments import done_shards
from shardline.status.fold import JobStatus, fold_status, may_live
from shardline.store import ObjectInfo, Store

_ENDED_PER_READ = 256
"""Done shards whose last word is fetched in one read: they only add to `rows_dead`, and can wait."""


class StatusReader:
    """Reads the status of one job again and again, remembering what cannot have changed."""

    def __init__(self, store: Store, plan: Plan) -> None:
        self._store = store
        self._plan = plan
        self._shards: list[ShardEntry] | None = None
        self._seen: dict[str, tuple[tuple[str | None, int, datetime], Progress]] = {}
        self.done: set[str] = set()
        """Names of the shards that had results when the status was last read."""

    def read(self, now: datetime) -> JobStatus:
        """The job's status; `now` decides which workers still count."""
        layout = self._plan.layout
        if self._shards is None:
            self._shards = _read_shard_table(self._store, layout.shard_table)
        # progress first: a shard that ends in between is then done, and never seen as stopped
        spoken = list(self._store.list(layout.progress_prefix))
        self.done = done_shards(self._store, layout)
        self._fetch(spoken)
        words = [p for _, p in self._seen.values()]
        return fold_status(self._plan.job_id, self._shards, self.done, words, now)

    def may_live(self, now: datetime) -> list[Progress]:
        """The last words of workers that may be at work on a shard, as of the last read."""
        words = (p for _, p in self._seen.values())
        return [p for p in words if p.shard not in self.done and may_live(p, now)]

    def _fetch(self, spoken: list[ObjectInfo]) -> None:
        ended = 0
        for o in spoken:
            version = (o.e_tag, o.size_bytes, o.modified)
            if o.path in self._seen and self._seen[o.path][0] == version:
                continue
            if shard_of(o.path) in self.done:
                ended += 1
                if ended > _ENDED_PER_READ:
                    continue
            content = self._store.read_or_none(o.path)
            if content is not None:
                self._seen[o.path] = (version, msgspec.json.decode(content, type=Progress))


def read_status(store: Store, plan: Plan, now: datetime) -> JobStatus:
    """The status of a job, read once."""
    return StatusReader(store, plan).read(now)


def _read_shard_table(store: Store, path: str) -> list[ShardEntry] | None:
    """The shards by name, or None while the job is being prepared."""
    content = store.read_or_none(path)
    if content is None:
        return None
    import pyarrow.parquet as pq

    rows = pq.read_table(
        io.BytesIO(content), columns=list(ShardEntry.__struct_fields__)
    ).to_pylist()
    return sorted(msgspec.convert(rows, list[ShardEntry]), key=lambda s: s.shard)
