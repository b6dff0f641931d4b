"""`python -m shardline.worker --job {root}/jobs/{job_id} --shard ID [--generation N]`.

The same program in a pod, as the subprocess of a task, and by hand. It ends by `os._exit`: a thread
that waits for a store which never answers must not keep a drained worker alive.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
from pathlib import Path

from pydantic import ValidationError
from uuid6 import uuid7

from shardline.engines.processes import kill_children
from shardline.errors import StoreRefused
from shardline.reasons import ExitCode
from shardline.store import Store, open_store
from shardline.worker.logs import flush_log, log_to
from shardline.worker.parent import end_with_parent
from shardline.worker.run import Assignment, infer_shard
from shardline.worker.settings import WorkerSettings
from shardline.worker.stop import Stop

log = logging.getLogger("shardline.worker")

_ROWS_SHARE = 0.65  # of the drain budget; the rest is for the commit


def main(arguments: list[str] | None = None) -> int:
    """Run one attempt; the exit code is one of reasons.ExitCode."""
    given = _parse(arguments)
    root, _, job_id = given.job.rstrip("/").rpartition("/jobs/")
    with tempfile.TemporaryDirectory(prefix="shardline-worker-") as name:
        folder = Path(name)
        try:
            settings = WorkerSettings()
            log_to(folder / "log", settings.log_level)
            end_with_parent(settings.drain_s)
            store = open_store(root)
        except ValidationError as error:
            sys.stderr.write(f"worker settings: {' '.join(str(error).split())}\n")
            return ExitCode.WRONG_INPUT
        except StoreRefused as error:
            log.warning("store: %s", error)
            return ExitCode.STORE_UNREACHABLE
        work = Assignment(job_id, given.shard, given.generation, given.attempt, folder)
        # not asyncio.run: at its end it would wait for every thread
        return asyncio.new_event_loop().run_until_complete(_supervise(store, work, settings))


async def _supervise(store: Store, work: Assignment, settings: WorkerSettings) -> ExitCode:
    """Keep the drain budget: whatever the store or the engine does, the process ends in time."""
    stop = Stop()
    stop.listen()
    alive = asyncio.create_task(_show_life(settings.liveness_file))
    working = asyncio.create_task(infer_shard(store, work, settings, stop))
    told = asyncio.create_task(stop.draining.wait())
    await asyncio.wait({working, told}, return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
        log.info("shard %s: draining, %.0f s at most", work.shard, settings.drain_s)
        asyncio.get_running_loop().call_later(_ROWS_SHARE * settings.drain_s, stop.at_once.set)
        await asyncio.wait({working}, timeout=settings.drain_s)
    alive.cancel()
    if working.done():
        return working.result()
    log.warning("shard %s: the store did not take the last rows in time", work.shard)
    return ExitCode.STORE_UNREACHABLE


async def _show_life(file: Path | None) -> None:
    """A file whose age says whether the loop that feeds still turns."""
    while file:
        await asyncio.to_thread(file.touch)
        await asyncio.sleep(1)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m shardline.worker", description=__doc__)
    parser.add_argument("--job", required=True, help="URI of the job: {root}/jobs/{job_id}")
    parser.add_argument("--shard", required=True, help="the shard's id")
    parser.add_argument("--generation", type=int, default=1, help="start or resume of the job")
    parser.add_argument(
        "--attempt", default=str(uuid7()), help="id of this attempt, made if absent"
    )
    return parser.parse_args(arguments)


def _exit() -> None:
    code: int = 1
    try:
        code = main()
    except SystemExit as error:  # argparse
        code = error.code if isinstance(error.code, int) else 2
    except BaseException:
        log.exception("worker: this is a bug")
    kill_children()
    logging.shutdown()
    flush_log()
    os._exit(code)


if __name__ == "__main__":
    _exit()
