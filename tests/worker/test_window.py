"""The window and an engine that goes down: who was in it, and who was not any more."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shardline.engines.base import Answer, EngineDied
from shardline.engines.stub import StubEngine
from shardline.plan import Plan
from shardline.reasons import ExitCode
from tests.worker.in_process import attempt
from tests.worker.prepared import prepare

pytestmark = pytest.mark.timeout(60)


class LateEngine(StubEngine):
    """Says at once that it died; what it had answered before comes a moment later."""

    async def generate(self, custom_id: str, prepared: Any) -> Answer:
        if "die" in prepared.markers:
            await asyncio.sleep(0.001)
            raise EngineDied("dead")
        await asyncio.sleep(0.1)
        return await super().generate(custom_id, prepared)


@pytest.mark.protocol(8)
def test_a_row_whose_answer_came_after_the_death_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def maker(plan: Plan, slots: int | None = None) -> Any:
        return lambda: LateEngine(plan.job_file.engine.engine_args)

    monkeypatch.setattr("shardline.worker.drive.engine_maker", maker)
    prepared = prepare(tmp_path, ["one", "two", "three [stub:die]", "four"])
    assert attempt(prepared, tmp_path) is ExitCode.DONE
    assert prepared.reasons() == {2: "engine_killer"}
    assert sorted(prepared.committed()) == sorted(prepared.ids)
    (record,) = prepared.attempts()
    assert record.counts.results == 3
