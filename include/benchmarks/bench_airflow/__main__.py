"""What Airflow itself costs a job of many shards: `python -m benchmarks.bench_airflow [--shards N]`.

A whole Airflow on PostgreSQL runs the dag `infer_locally` with an executor that ends each shard at
once (see `executor`). Twice: as `run_waves` opens it, in waves, and as one run that holds all shards.
The last line is one JSON object: wall seconds from the first start to the last run's end, the
scheduler's CPU seconds meanwhile, and the longest time it was not heard of.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.bench_airflow.measure import Figures, Meter
from deploy.embedded.stack import ENDED, EmbeddedAirflow, embedded_airflow

WAVE_DAG = "infer_locally"
JOB_DAG = "batch_inference"
RUN = "bench"
EXECUTOR = "benchmarks.bench_airflow.executor.SimulatedShards"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=20_000)
    parser.add_argument("--skip-one", action="store_true", help="only the waves: a minute, not ten")
    parser.add_argument(
        "--store",
        type=Path,
        help="a folder for the jobs' objects; to cut many shards takes long on a disk",
    )
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-airflow-") as name,
        tempfile.TemporaryDirectory(prefix="bench-store-", dir=given.store) as root,
    ):
        folder = Path(name)
        corpus = write_corpus(folder, given.shards)
        with airflow(folder, root, given.shards) as stack:
            figures = {"waves": measure_waves(stack, job(corpus, "bench-waves"))}
            print(f"waves  {figures['waves'].line()}", flush=True)
            if not given.skip_one:
                figures["one"] = measure_one(stack, root, job(corpus, "bench-one"), given.shards)
                print(f"one    {figures['one'].line()}", flush=True)
    named = [found.named(shape) for shape, found in figures.items()]
    heard = {"heartbeat_gap_s": round(figures["waves"].heartbeat_gap_s, 1)}
    print(
        json.dumps({"shards": given.shards} | {k: v for n in named for k, v in n.items()} | heard)
    )


def airflow(folder: Path, root: str, shards: int) -> Any:
    """The stack as it is shipped, but for room: every shard may be in flight, and mapped in one run."""
    env = {
        "SHARDLINE_ROOT": root,
        "SHARDLINE_JOBS_DIR": str(folder / "jobs"),
        "AIRFLOW__CORE__EXECUTOR": EXECUTOR,
        "AIRFLOW__CORE__PARALLELISM": "1000",
        "AIRFLOW__CORE__MAX_MAP_LENGTH": str(max(shards, 1_000)),
    }
    (folder / "jobs").mkdir()
    pools = {"local": 1_000}
    return embedded_airflow(folder / "airflow", env=env, dags=(JOB_DAG, WAVE_DAG), pools=pools)


def write_corpus(folder: Path, rows: int) -> Path:
    path = folder / "corpus.jsonl"
    with path.open("w") as file:
        for n in range(rows):
            file.write(json.dumps({"id": f"d{n}", "text": f"document number {n}"}) + "\n")
    return path


def job(corpus: Path, name: str) -> dict[str, Any]:
    """A job with one document in each shard."""
    return {
        "name": name,
        "corpus": {"uri": str(corpus), "id": "id"},
        "messages": [{"role": "user", "content": "{{ text }}"}],
        "local": {"model": "stub", "engine": "stub"},
        "shards": {"max_requests": 1},
    }


def measure_waves(stack: EmbeddedAirflow, job: dict[str, Any]) -> Figures:
    """From the first wave that `run_waves` opens to the end of the last."""
    return Meter(stack.stack).measure(
        on_start=lambda: stack.trigger(JOB_DAG, {"job": job}, run_id=RUN),
        is_over=lambda: stack.task_states(JOB_DAG, RUN).get("run_waves") in ENDED,
    )


def measure_one(stack: EmbeddedAirflow, root: str, job: dict[str, Any], shards: int) -> Figures:
    """One run of the wave's dag over all shards of a second job."""
    job_id = cut(root, job)
    conf = {"job_id": job_id, "lo": 0, "hi": shards, "generation": 1}
    run_id = f"{job_id}-g1"
    return Meter(stack.stack).measure(
        on_start=lambda: stack.trigger(WAVE_DAG, conf, run_id=run_id),
        is_over=lambda: stack.api.run(WAVE_DAG, run_id)["state"] in ENDED,
    )


def cut(root: str, given: dict[str, Any]) -> str:
    """Plan the job and cut its shards, in this process; its id."""
    from datetime import UTC, datetime

    from shardline.cli.run_job import prepare_job
    from shardline.cli.screen import Screen
    from shardline.corpus.plan_job import plan_job
    from shardline.job_reader import parse_job
    from shardline.settings import Settings
    from shardline.store import open_store

    store = open_store(root)
    job = parse_job(given, folder=Path(root))
    plan = plan_job(job, store=store, settings=Settings(), partition=None, now=datetime.now(UTC))
    prepare_job(store, plan, Screen(is_silent=True))
    return plan.job_id


if __name__ == "__main__":
    main()
