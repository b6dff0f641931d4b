"""The worker's benchmark: how runs become figures, and a tiny run of the whole of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bench_worker_figures import Run, describe, key_figures, ratios, same_answers
from benchmarks.bench_worker_load import long_rows, shard_path, short_chats, write_shard
from shardline.runners.local import worker_environment

PROJECT = Path(__file__).parents[2]


def run(cpu_s: float, wall_s: float) -> Run:
    return Run(rows=1000, cpu_s=cpu_s, wall_s=wall_s, peak_rss_mb=100)


def test_figures_are_medians_of_rounds_and_ratios_pair_what_stood_side_by_side() -> None:
    runs = {
        "worker": [run(0.4, 2), run(0.5, 4), run(0.9, 3)],
        "run_batch": [run(1.0, 4), run(1.0, 6), run(3.0, 9)],
    }
    assert ratios(runs, "worker", "run_batch", "cpu_s") == pytest.approx([0.4, 0.5, 0.3])
    assert key_figures(runs) == {
        "front_end_ms_per_request": 0.5,
        "run_batch_ms_per_request": 1.0,
        "front_end_vs_run_batch": 0.4,
        "wall_vs_run_batch": 2.0,
    }


def test_a_round_that_only_one_contender_ran_is_no_pair() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratios({"a": [run(1, 1)], "b": []}, "a", "b", "cpu_s")


def test_people_see_the_range_beside_the_median() -> None:
    line = describe("worker", [run(0.4, 2), run(0.5, 4), run(0.9, 3)])
    assert "0.50 (0.40-0.90) CPU ms a request, 333 (250-500) requests/s (3 runs)" in line


def test_a_missing_answer_is_not_the_same() -> None:
    assert same_answers({"a": "x", "b": "y", "c": ""}, {"a": "x", "b": "z"}) == 1


def test_the_memory_shard_has_the_bytes_it_is_said_to_have(tmp_path: Path) -> None:
    prepared = write_shard(tmp_path, tmp_path, long_rows(20))
    assert shard_path(prepared).stat().st_size / 20 == pytest.approx(2500, rel=0.02)


def test_no_two_chats_are_alike() -> None:
    assert len({json.dumps(body) for body in short_chats(50)}) == 50


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_tiny_run_ends_with_one_json_object() -> None:
    knobs = {"ROWS": "40", "ROUNDS": "1", "MEMORY_ROWS": "60", "CHAT": "0", "SIMULATED": "0"}
    env = worker_environment(knobs) | {"PYTHONPATH": os.pathsep.join(["include", "."])}
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_worker"],
        cwd=PROJECT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "40 of 40 answers are the same" in ran.stdout
    figures = json.loads(ran.stdout.splitlines()[-1])
    assert figures["peer"].startswith("vllm")
    for key in ("front_end_ms_per_request", "front_end_vs_run_batch", "wall_vs_run_batch"):
        assert figures[key] > 0
    assert {"memory_mb_worker", "memory_mb_run_batch"} <= figures.keys()
