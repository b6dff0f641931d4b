from pathlib import Path

from shardline.engines import known_good
from shardline.engines.stub import StubEngine
from tests.factories import make_job


async def _answer(folder: Path) -> str:
    engine = StubEngine({})
    request = known_good(make_job(folder))
    (prepared,) = engine.prepare([request])
    return (await engine.generate(request.custom_id, prepared)).text


def test_an_engine_that_is_well_can_do_the_known_good_request(tmp_path: Path) -> None:
    import asyncio

    assert asyncio.run(_answer(tmp_path)) == "Hello"
