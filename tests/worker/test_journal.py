"""The record of an attempt: what was written last is what stands there."""

import asyncio
import threading
from pathlib import Path

import pytest

from shardline.attempts import new_attempt
from shardline.patience import Patience
from shardline.reasons import AttemptEnd, ExitCode
from shardline.worker.clock import Clock
from shardline.worker.desk import Desk
from shardline.worker.journal import Journal
from shardline.worker.stop import Stop
from shardline.worker_settings import WorkerSettings
from tests.worker.in_process import FaultyStore
from tests.worker.prepared import SHARD, prepare

pytestmark = pytest.mark.timeout(60)


@pytest.mark.protocol(9)
def test_a_save_whose_caller_is_cancelled_never_lands_on_top_of_the_end(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ["a document"])
    go_on = threading.Event()

    def hold_the_first(n: int, path: str, moment: str) -> None:
        if n == 0 and moment == "before":
            go_on.wait(30)

    store = FaultyStore(prepared.store.uri, hold_the_first)
    record = new_attempt("attempt-1", SHARD, 1)
    made = (store, prepared.plan, WorkerSettings(), Stop(), Patience(1), record)
    journal = Journal(Desk(*made, Clock(record.seconds), tmp_path))

    async def cancel_a_save_and_end() -> None:
        saving = asyncio.create_task(journal.save())
        while not store.paths:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        saving.cancel()
        ending = asyncio.create_task(journal.end(ExitCode.DONE, ""))
        await asyncio.wait({ending}, timeout=0.2)  # enough for it to overtake, if it may
        go_on.set()
        await ending

    asyncio.run(cancel_a_save_and_end())
    (found,) = prepared.attempts()
    assert found.end is AttemptEnd.DONE
