"""`python -m shardline.worker --job {root}/jobs/{job_id} --shard ID [--generation N]`.

The same program in a pod, as the subprocess of a task, and by hand. It ends by `os._exit`: a thread
that waits for a store which never answers must not keep a drained worker alive.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
from pathlib import Path

from pydantic import ValidationError
from uuid6 import uuid7

from shardline.attempts import new_attempt
from shardline.disk import make_scratch
from shardline.errors import StoreRefused
from shardline.processes import end_with_parent, kill_children
from shardline.reasons import ExitCode
from shardline.store import open_store
from shardline.tee import flush_log, log_to
from shardline.worker.run import infer_shard
from shardline.worker.stop import Stop
from shardline.worker_settings import WorkerSettings

log = logging.getLogger("shardline.worker")

_ROWS_SHARE = 0.65  # of the drain budget; the rest is for the commit


def main(arguments: list[str] | None = None) -> int:
    """Run one attempt; the exit code is one of reasons.ExitCode."""
    given = _parse(arguments)
    try:
        scratch = make_scratch(given.attempt)
    except OSError as error:
        sys.stderr.write(f"worker: no scratch space: {error}\n")
        return ExitCode.ENGINE_FAILED
    with scratch as name:
        try:
            settings = WorkerSettings()
        except ValidationError as error:
            sys.stderr.write(f"worker settings: {' '.join(str(error).split())}\n")
            return ExitCode.WRONG_INPUT
        log_to(Path(name) / "log", settings.log_level)
        end_with_parent(settings.drain_s)
        # not asyncio.run: at its end it would wait for every thread
        return asyncio.new_event_loop().run_until_complete(_work(given, Path(name), settings))


async def _work(given: argparse.Namespace, folder: Path, settings: WorkerSettings) -> ExitCode:
    """Keep the drain budget: whatever the store or the engine does, the process ends in time."""
    root, _, job_id = given.job.rstrip("/").rpartition("/jobs/")
    try:
        store = open_store(root)
    except StoreRefused as error:
        log.warning("store: %s", error)
        return ExitCode.STORE_REFUSED
    stop = Stop()
    stop.listen()
    place = (socket.gethostname(), os.getpid(), settings.pod_uid, settings.node)
    attempt = new_attempt(given.attempt, given.shard, given.generation, *place)
    alive = asyncio.create_task(_show_life(settings.liveness_file))
    working = asyncio.create_task(infer_shard(store, job_id, attempt, folder, settings, stop))
    told = asyncio.create_task(stop.draining.wait())
    await asyncio.wait({working, told}, return_when="FIRST_COMPLETED")
    if not working.done():
        log.info("shard %s: draining, %.0f s at most", given.shard, settings.drain_s)
        asyncio.get_running_loop().call_later(_ROWS_SHARE * settings.drain_s, stop.at_once.set)
        await asyncio.wait({working}, timeout=settings.drain_s)
    alive.cancel()
    if working.done():
        return working.result()
    log.warning("shard %s: the store did not take the last rows in time", given.shard)
    return ExitCode.STORE_UNREACHABLE


async def _show_life(file: Path | None) -> None:
    """A file whose age says whether the loop that feeds still turns."""
    while file:
        file.touch()  # noqa: ASYNC240 - a thread may wait for a store that hangs
        await asyncio.sleep(1)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m shardline.worker", description=__doc__)
    parser.add_argument("--job", required=True, help="URI of the job: {root}/jobs/{job_id}")
    parser.add_argument("--shard", required=True, help="the shard's id")
    parser.add_argument("--generation", type=int, default=1, help="start or resume of the job")
    parser.add_argument("--attempt", default=str(uuid7()), help="this attempt's id, made if absent")
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
