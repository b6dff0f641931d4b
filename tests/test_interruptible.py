"""A limit on work is one on a machine that runs: what stands still is not late."""

from __future__ import annotations

import asyncio
import time

import pytest

from shardline.interruptible import unless


def test_work_on_a_machine_that_stands_still_for_longer_than_the_limit_may_end() -> None:
    ended: list[bool] = []

    async def work() -> None:
        time.sleep(2.1)  # noqa: ASYNC251 - the whole process stands still
        await asyncio.to_thread(time.sleep, 0.05)
        ended.append(True)

    assert asyncio.run(unless(asyncio.Event(), work(), limit_s=2))
    assert ended


def test_work_that_does_not_end_is_given_up() -> None:
    cancelled: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await unless(asyncio.Event(), work(), limit_s=0.04)
        await asyncio.sleep(0)

    asyncio.run(give_up())
    assert cancelled


def test_told_to_stop_it_waits_no_longer() -> None:
    told = asyncio.Event()

    async def work() -> None:
        told.set()
        await asyncio.Event().wait()

    assert not asyncio.run(unless(told, work(), limit_s=600))
