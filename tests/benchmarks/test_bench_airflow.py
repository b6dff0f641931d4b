"""The simulated executor's one decision: which shard a mapped task stands for."""

from pathlib import Path

import pytest

from benchmarks.bench_airflow.__main__ import cut, job, write_corpus
from benchmarks.bench_airflow.executor import result_of
from shardline.plan import read_plan
from shardline.segments import done_shards
from shardline.shards.manifest import read_shards
from shardline.store import open_store

SHARDS = 20


@pytest.mark.parametrize(
    ("run", "map_index", "number"), [("-g1", 13, 13), ("-w0-g1", 3, 3), ("-w1-g2", 4, 12)]
)
def test_a_run_s_name_and_an_index_name_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str, map_index: int, number: int
) -> None:
    monkeypatch.setenv("SHARDLINE_ROOT", str(tmp_path / "root"))
    job_id = cut(str(tmp_path / "root"), job(write_corpus(tmp_path, SHARDS), "bench"))
    store = open_store(str(tmp_path / "root"))
    plan = read_plan(store, job_id)
    shards = read_shards(store, plan)
    assert len(shards) == SHARDS

    result_of(f"{job_id}{run}", map_index).touch()

    assert done_shards(store, plan.layout) == {shards[number].shard}
