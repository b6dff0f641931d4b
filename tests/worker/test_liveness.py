"""The file that says whether the worker's loop still turns."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shardline.worker.__main__ import _show_life


def test_the_loop_shows_its_life_while_every_thread_waits_for_a_store_that_hangs(
    tmp_path: Path,
) -> None:
    go_on, file = threading.Event(), tmp_path / "alive"

    async def look() -> bool:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        hanging = asyncio.create_task(asyncio.to_thread(go_on.wait, 30))
        await asyncio.sleep(0)
        alive = asyncio.create_task(_show_life(file))
        await asyncio.wait({alive}, timeout=0.2)
        alive.cancel()
        is_shown = file.exists()
        go_on.set()
        await hanging
        return is_shown

    assert asyncio.run(look())
