"""What every part of one attempt works with; made once, never changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shardline.errors import Cancelled
from shardline.layout import JobLayout
from shardline.patience import Patience
from shardline.plan import Plan
from shardline.rows import Attempt
from shardline.store import Store
from shardline.worker.clock import Clock
from shardline.worker.stop import Stop
from shardline.worker_settings import WorkerSettings


@dataclass(frozen=True)
class Desk:
    """`attempt` is the attempt's own record, which grows as it goes on; `folder` is for scratch."""

    store: Store
    plan: Plan
    settings: WorkerSettings
    stop: Stop
    patience: Patience
    attempt: Attempt
    clock: Clock
    folder: Path

    @property
    def layout(self) -> JobLayout:
        return self.plan.layout

    async def check_cancelled(self) -> None:
        """Stop everything if the job was cancelled (PROTOCOL 20). Raises Cancelled."""
        path = self.layout.cancel(self.attempt.generation)
        if await self.patience.call(self.store.exists, path):
            self.stop.cancel()
            raise Cancelled(f"{path} is there")
