"""What the scheduler does while something runs: its CPU time, and how long it is not heard of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass

import psutil
import psycopg2

from deploy.embedded.stack import Stack

POLL_S = 1.0
RUNS = "select count(*) from dag_run where dag_id = 'infer_locally'"
SHARDS = "select count(*) from task_instance where task_id = 'infer_shard' and map_index >= 0"
HEARTBEAT_AGE = (
    "select extract(epoch from now() - latest_heartbeat) from job"
    " where job_type = 'SchedulerJob' order by id desc limit 1"  # one that was silent too long says failed
)


@dataclass(frozen=True)
class Figures:
    """Seconds, from the first run's start to the end; CPU of the scheduler's own process."""

    wall_s: float
    cpu_s: float
    database_cpu_s: float
    heartbeat_gap_s: float
    peak_rss_mb: int
    shards: int

    def line(self) -> str:
        return (
            f"{self.shards} shards in {self.wall_s:.0f} s; CPU of scheduler {self.cpu_s:.0f} s, of "
            f"database {self.database_cpu_s:.0f} s; silent for {self.heartbeat_gap_s:.0f} s at most; "
            f"{self.peak_rss_mb} MB"
        )

    def named(self, prefix: str) -> dict[str, float]:
        return {
            f"{prefix}_wall_s": round(self.wall_s, 1),
            f"{prefix}_cpu_s": round(self.cpu_s, 1),
            f"{prefix}_heartbeat_gap_s": round(self.heartbeat_gap_s, 1),
        }


class Meter:
    """Looks at a stack once a second."""

    def __init__(self, stack: Stack) -> None:
        pids = stack.pids()
        scheduler, postgres = pids["scheduler"], pids["postgres"]
        assert scheduler, "the stack is up"
        assert postgres, "the stack is up"
        self._scheduler = psutil.Process(scheduler)
        self._postgres = psutil.Process(postgres)
        self._uri = stack.postgres.uri("postgresql")
        self._check = stack.check

    def measure(self, on_start: Callable[[], object], is_over: Callable[[], bool]) -> Figures:
        """From the first run of the wave's dag after `on_start` to the end.

        Raises:
            StackError: Airflow died meanwhile.
        """
        with closing(psycopg2.connect(self._uri)) as database:  # `with` it alone is a transaction
            database.autocommit = True
            cursor = database.cursor()
            shards, runs = self._count(cursor, SHARDS), self._count(cursor, RUNS)
            on_start()
            while self._count(cursor, RUNS) == runs and not is_over():
                self._pause()
            start = self._read()
            gap_s, peak_mb = 0.0, 0
            while not is_over():
                gap_s = max(gap_s, self._count(cursor, HEARTBEAT_AGE))
                peak_mb = max(peak_mb, self._scheduler.memory_info().rss >> 20)
                self._pause()
            end = self._read()
            shards = self._count(cursor, SHARDS) - shards
        wall_s, cpu_s, database_cpu_s = (b - a for a, b in zip(start, end, strict=True))
        return Figures(wall_s, cpu_s, database_cpu_s, gap_s, peak_mb, int(shards))

    def _pause(self) -> None:
        self._check()
        time.sleep(POLL_S)

    def _read(self) -> tuple[float, float, float]:
        database = _cpu_s([self._postgres, *self._postgres.children()], with_reaped=True)
        return time.monotonic(), _cpu_s([self._scheduler]), database

    @staticmethod
    def _count(cursor: object, query: str) -> float:
        cursor.execute(query)  # type: ignore[attr-defined]
        return float(cursor.fetchone()[0] or 0)  # type: ignore[attr-defined]


def _cpu_s(processes: Iterable[psutil.Process], with_reaped: bool = False) -> float:
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
        if with_reaped:
            total += times.children_user + times.children_system
    return total
