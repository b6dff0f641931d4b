"""Whole jobs on a real Airflow: PostgreSQL, four components, the stub engine in real workers."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.embedded.stack import EmbeddedAirflow, embedded_airflow
from shardline.attempts import read_attempts
from shardline.plan import Plan, read_plan
from shardline.results.files import law_of, published_files
from shardline.results.publish import current_publication
from shardline.runners.generations import current_generation
from shardline.store import Store, open_store
from tests.factories import make_rows, write_corpus
from tests.waits import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DAGS = (
    "batch_inference",
    "replay_dead_letters",
    "infer_locally",
    "daily-reviews",
    "consume_example",
)
ROWS = 24
SHARDS = 2
DAYS = ("2026-11-05", "2026-11-06", "2026-11-07")
JOB = {
    "name": "small",
    "corpus": {"uri": "../small/corpus", "id": "id"},
    "messages": [{"role": "user", "content": "{{ text }}"}],
    "output": {"choices": ["good", "bad"]},
    "local": {
        "model": "stub",
        "engine": "stub",
        # about ten seconds a shard: time to kill its worker in the middle, on any machine
        "engine_args": {"latency_s": 1.6, "max_num_seqs": 2},
    },
    "shards": {"max_requests": ROWS // SHARDS},
    "limits": {"max_dead": 1, "max_rejected": 0},
}
DAILY = JOB | {
    "name": "daily-reviews",
    "corpus": {"uri": "../daily/corpus/dt={{ partition }}", "id": "id"},
    "local": {"model": "stub", "engine": "stub"},
    "shards": {},
    "schedule": "@daily",
}


@dataclass
class House:
    """A running Airflow, and the store that its jobs write to."""

    airflow: EmbeddedAirflow
    store: Store
    folder: Path

    def run(self, dag_id: str, conf: dict[str, Any], **chosen: Any) -> tuple[str, str]:
        run_id = self.airflow.trigger(dag_id, conf, **chosen)
        return run_id, self.airflow.wait(dag_id, run_id, 300)

    def plan_of(self, dag_id: str, run_id: str) -> Plan:
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/plan_job/xcomEntries/job_id"
        value = self.airflow.api.request("GET", path)["value"]
        return read_plan(self.store, json.loads(value) if value.startswith('"') else value)

    def waves(self, plan: Plan) -> list[str]:
        runs = self.airflow.api.runs("infer_locally")
        return [r["dag_run_id"] for r in runs if r["dag_run_id"].startswith(plan.job_id)]

    def clear(self, dag_id: str, run_id: str, *tasks: str | list[Any], **options: bool) -> str:
        body = {
            "dag_run_id": run_id,
            "task_ids": list(tasks),
            "only_failed": False,
            "dry_run": False,
        }
        path = f"dags/{dag_id}/clearTaskInstances"
        self.airflow.api.request("POST", path, json=body | options)
        return self.airflow.wait(dag_id, run_id, 300)

    def said(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> list[str]:
        """What a task's last try logged, without times, groups and Airflow's own last word."""
        lines = self.airflow.logs(dag_id, run_id, task_id, map_index).splitlines()
        texts = [line.partition("Z ")[2] for line in lines]
        return [t for t in texts if t and not t.startswith("::") and t != "Task exited"]


@dataclass
class Finished:
    """One job that was run from the form, and whose worker was killed on the way."""

    run_id: str
    state: str
    plan: Plan
    killed: int


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    # Not below pytest's folder: PostgreSQL runs as another user, and every pytest that starts shuts
    # that folder to all users but its own.
    with tempfile.TemporaryDirectory(prefix="shardline-house-") as folder:
        yield from open_house(Path(folder))


def open_house(folder: Path) -> Iterator[House]:
    (folder / "jobs").mkdir()
    for name, job in (("small.yaml", JOB), ("daily_reviews.yaml", DAILY)):
        (folder / "jobs" / name).write_text(json.dumps(job))  # JSON is YAML
    write_corpus(folder / "small", make_rows(ROWS))
    for i, day in enumerate(DAYS):
        write_corpus(folder / "daily", make_rows(10 + i), f"dt={day}/part-0.jsonl")
    changes = {
        "SHARDLINE_ROOT": str(folder / "root"),
        "SHARDLINE_JOBS_DIR": str(folder / "jobs"),
        "SHARDLINE_SEGMENT_S": "0.5",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
    }
    with embedded_airflow(folder / "home", env=changes, dags=DAGS, pools={"local": 2}) as airflow:
        yield House(airflow, open_store(str(folder / "root")), folder)


@pytest.fixture(scope="module")
def finished(house: House) -> Finished:
    run_id = house.airflow.trigger("batch_inference", {"job_file": "small.yaml"})
    killed = kill_a_worker_in_the_middle(house)
    state = house.airflow.wait("batch_inference", run_id, 300)
    return Finished(run_id, state, house.plan_of("batch_inference", run_id), killed)


def kill_a_worker_in_the_middle(house: House) -> int:
    """SIGKILL the first worker that has committed a segment and not its results."""
    segments = house.folder / "root" / "jobs"
    until("segment", lambda: list(segments.glob("*/segments/*/*.jsonl")), 200)
    first = next(iter(segments.glob("*/segments/*/*.jsonl"))).parent.name
    (worker,) = [
        process
        for process in psutil.process_iter(["cmdline"])
        if (line := process.info["cmdline"] or [])[1:3] == ["-m", "shardline.worker"]
        and first in line
        and str(house.folder) in " ".join(line)
    ]
    os.kill(worker.pid, signal.SIGKILL)
    return worker.pid


def digests(store: Store, *prefixes: str) -> dict[str, str]:
    return {
        found.path: hashlib.sha256(store.read(found.path)).hexdigest()
        for prefix in prefixes
        for found in store.list(prefix)
    }


def what_readers_see(house: House, plan: Plan) -> dict[str, str]:
    layout = plan.layout
    kept = (layout.settlement, layout.merge_report, layout.validation)
    return digests(house.store, layout.results_prefix, "published/small/") | {
        path: hashlib.sha256(house.store.read(path)).hexdigest() for path in kept
    }


def test_a_job_runs_from_the_form_to_the_table(house: House, finished: Finished) -> None:
    assert finished.state == "success"
    current = current_publication(house.store, "small", None)
    assert current is not None
    assert (current.job_id, current.rows) == (finished.plan.job_id, ROWS)
    assert published_files(house.store, "small")
    (outcome,) = [
        t
        for t in house.said("batch_inference", finished.run_id, "check_outcome")
        if t.startswith("job ")
    ]
    assert f"published {ROWS} rows" in outcome


@pytest.mark.protocol(9, 11)
def test_a_killed_worker_is_retried_and_nothing_is_lost_or_doubled(
    house: House, finished: Finished
) -> None:
    assert finished.killed
    law = law_of(house.store, "small", None)
    assert law is not None
    assert law.differences() == []
    assert (law.rows_read, law.results, law.dead_letters) == (ROWS, ROWS, 0)
    shards = {
        p.path.split("/")[-1].removesuffix(".jsonl")
        for p in house.store.list(finished.plan.layout.results_prefix)
    }
    attempts = {s: read_attempts(house.store, finished.plan.layout, s) for s in shards}
    (killed,) = [found for found in attempts.values() if len(found) > 1]
    assert [a.exit_code for a in killed] == [-signal.SIGKILL, 0]
    assert killed[1].resumed_rows > 0


def test_run_waves_tells_how_far_the_job_is(house: House, finished: Finished) -> None:
    said = house.said("batch_inference", finished.run_id, "run_waves")
    assert any(f"opened {finished.plan.job_id}-w0-g1" in text for text in said)
    assert any(f"{SHARDS} of {SHARDS} shards done, {ROWS} of {ROWS} rows" in text for text in said)


def test_a_wave_shows_its_shards_by_name(house: House, finished: Finished) -> None:
    (wave,) = house.waves(finished.plan)
    tasks = house.airflow.api.task_instances("infer_locally", wave)
    names = {t["rendered_map_index"] for t in tasks if t["task_id"] == "infer_shard"}
    assert len(names) == SHARDS
    assert all(str(name).startswith("shard-") for name in names)


def test_a_done_job_opens_no_wave_and_says_so(house: House, finished: Finished) -> None:
    before = what_readers_see(house, finished.plan)
    run_id, state = house.run("batch_inference", {"job_file": "small.yaml"})
    assert state == "success"
    assert house.waves(finished.plan) == [f"{finished.plan.job_id}-w0-g1"]
    assert any("no wave is opened" in t for t in house.said("batch_inference", run_id, "run_waves"))
    published = house.said("batch_inference", run_id, "publish_results")
    assert any("already published" in text for text in published)
    assert what_readers_see(house, finished.plan) == before


@pytest.mark.protocol(21)
def test_clearing_any_task_gives_the_same_bytes(house: House, finished: Finished) -> None:
    before = what_readers_see(house, finished.plan)
    (wave,) = house.waves(finished.plan)
    assert house.clear("infer_locally", wave, ["infer_shard", 0]) == "success"
    said = house.said("infer_locally", wave, "infer_shard", 0)
    assert any("nothing was run" in text for text in said)
    tasks = ("plan_job", "run_waves", "settle_shards", "merge_shards", "publish_results")
    assert house.clear("batch_inference", finished.run_id, *tasks) == "success"
    tries = {
        task["task_id"]: task["try_number"]
        for task in house.airflow.api.task_instances("batch_inference", finished.run_id)
    }
    assert {tries[task] for task in tasks} == {2}
    assert current_generation(house.store, finished.plan.job_id) == 1
    assert what_readers_see(house, finished.plan) == before


@pytest.mark.parametrize(
    ("conf", "line"),
    [
        (
            {
                "job": JOB
                | {
                    "local": {
                        "model": "stub",
                        "engine": "stub",
                        "engine_args": {"trust_remote_code": True},
                    }
                }
            },
            "NotAllowed: conf.job: local.engine_args.trust_remote_code: not allowed",
        ),
        ({"job": JOB | {"corpus": {"uri": 3}}}, "JobFileError: conf.job: corpus.uri: "),
        ({"job_file": "daily_reviews.yaml"}, "JobFileError: daily-reviews: corpus.uri: "),
    ],
)
def test_a_wrong_conf_fails_at_once_and_its_last_line_says_why(
    house: House, conf: dict[str, Any], line: str
) -> None:
    run_id, state = house.run("batch_inference", conf)
    assert state == "failed"
    assert house.said("batch_inference", run_id, "plan_job")[-1].startswith(line)
    states = house.airflow.task_states("batch_inference", run_id)
    assert (states["plan_job"], states["check_outcome"]) == ("failed", "failed")
    tries = {
        t["task_id"]: t["try_number"]
        for t in house.airflow.api.task_instances("batch_inference", run_id)
    }
    assert tries["plan_job"] == 1
    assert "plan_job failed" in house.said("batch_inference", run_id, "check_outcome")[-1]


@pytest.mark.protocol(15, 21, 22)
def test_a_dead_shard_reddens_the_job_and_clearing_run_waves_resumes_it(house: House) -> None:
    """The next generation runs only what has no results; here a shard file that was damaged."""
    job = JOB | {"name": "mended", "local": {"model": "stub", "engine": "stub"}}
    job |= {"limits": {"max_dead": 0}}
    api = house.airflow.api
    api.request("PATCH", "dags/infer_locally", json={"is_paused": True})
    run_id = house.airflow.trigger("batch_inference", {"job": job})
    until(
        "wave",
        lambda: any(r["dag_run_id"].startswith("mended") for r in api.runs("infer_locally")),
        200,
    )
    plan = house.plan_of("batch_inference", run_id)
    shard = next(iter(house.folder.glob(f"root/{plan.layout.prefix}shards/*.jsonl")))
    whole = shard.read_bytes()
    shard.write_bytes(whole.replace(b"document", b"dokument", 1))
    api.unpause("infer_locally")
    assert house.airflow.wait("batch_inference", run_id, 300) == "failed"
    assert "limits.max_dead" in house.said("batch_inference", run_id, "settle_shards")[-1]
    assert api.run("infer_locally", f"{plan.job_id}-w0-g1")["state"] == "failed"
    shard.write_bytes(whole)
    state = house.clear("batch_inference", run_id, "run_waves", include_downstream=True)
    assert state == "success"
    second = api.task_instances("infer_locally", f"{plan.job_id}-w0-g2")
    assert [t["rendered_map_index"] for t in second if t["task_id"] == "infer_shard"] == [
        shard.stem
    ]
    law = law_of(house.store, "mended", None)
    assert law is not None
    assert (law.results, law.dead_letters, law.differences()) == (ROWS, 0, [])


@pytest.mark.protocol(19, 21)
def test_dead_letters_are_replayed_from_the_form_once_and_again(house: House) -> None:
    """A setting that mends them; then the same wish finds nothing to do; cleared, it stays as it is."""
    stub = {"model": "stub", "engine": "stub"}
    job = JOB | {"name": "replayed", "output": {"truncated": "dead_letter"}}
    job |= {"parameters": {"max_tokens": 2}, "local": stub}
    run_id, state = house.run("batch_inference", {"job": job})
    assert state == "success"
    plan = house.plan_of("batch_inference", run_id)
    (line,) = [
        t for t in house.said("batch_inference", run_id, "check_outcome") if t.startswith("job ")
    ]
    assert f"`shardline replay {plan.job_id} --reason truncated`" in line

    wish = {"job": "replayed", "reasons": ["truncated"], "max_tokens": 50}
    run_id, state = house.run("replay_dead_letters", wish)
    assert state == "success"
    replay = read_plan(house.store, f"{plan.job_id}-r1")
    assert house.waves(replay) == [f"{replay.job_id}-w0-g1"]
    current = current_publication(house.store, "replayed", None)
    assert current is not None
    assert (current.job_id, current.parent, current.rows) == (replay.job_id, plan.job_id, ROWS)
    assert current.law.dead_letters == 0

    before = digests(house.store, f"{replay.layout.prefix}results/", "published/replayed/")
    tasks = ("open_replay", "cut_replay", "run_waves", "merge_shards", "publish_results")
    assert house.clear("replay_dead_letters", run_id, *tasks) == "success"
    again, state = house.run("replay_dead_letters", wish)
    assert state == "success"
    assert any(
        "nothing to replay" in text
        for text in house.said("replay_dead_letters", again, "open_replay")
    )
    assert digests(house.store, f"{replay.layout.prefix}results/", "published/replayed/") == before


def test_a_backfill_publishes_each_day_and_wakes_the_consumer_once_for_each(
    house: House,
) -> None:
    backfill(house)
    runs = {r["partition_key"]: r for r in house.airflow.api.runs("daily-reviews")}
    assert [runs[day]["state"] for day in DAYS] == ["success"] * 3
    rows = {day: current_publication(house.store, "daily-reviews", day) for day in DAYS}
    assert [p.rows if p else None for p in rows.values()] == [10, 11, 12]
    until("news of three days", lambda: len(news(house)) >= 3, 120)
    told = news(house)
    for i, day in enumerate(DAYS):
        found = rows[day]
        assert found is not None
        line = f"partition {day}, {10 + i} rows, version {found.version} of "
        assert sum(line in text for text in told) == 1


@pytest.mark.protocol(18)
def test_a_day_run_again_is_replaced_in_one_commit_and_its_past_is_kept(house: House) -> None:
    old = current_publication(house.store, "daily-reviews", DAYS[0])
    write_corpus(house.folder / "daily", make_rows(25), f"dt={DAYS[0]}/part-0.jsonl")
    _, state = house.run("daily-reviews", {}, partition_key=DAYS[0])
    assert state == "success"
    new = current_publication(house.store, "daily-reviews", DAYS[0])
    assert old is not None
    assert new is not None
    latest = max(
        p.version for d in DAYS if (p := current_publication(house.store, "daily-reviews", d))
    )
    assert (new.rows, new.version) == (25, latest)
    for version, rows in ((new.version, 25), (new.version - 1, 10)):
        files = published_files(house.store, "daily-reviews", DAYS[0], version)
        assert count_rows(files) == rows
    until(
        "news of the new version",
        lambda: any(f"{DAYS[0]}, 25 rows, version {new.version}" in t for t in news(house)),
        120,
    )


def backfill(house: House) -> None:
    """Three days, as a person would ask for them; the scheduled run of yesterday fails beside it."""
    house.airflow.api.unpause("daily-reviews")
    house.airflow.cli(
        "backfill", "create", "--dag-id", "daily-reviews", "--from-date", DAYS[0],
        "--to-date", DAYS[-1], "--max-active-runs", "2",
    )  # fmt: skip
    ended = ("success", "failed")
    until(
        "end of three days",
        lambda: (
            {
                r["partition_key"]
                for r in house.airflow.api.runs("daily-reviews")
                if r["state"] in ended
            }
            >= set(DAYS)
        ),
        400,
    )


def news(house: House) -> list[str]:
    """What the consumer logged in all its ended runs."""
    runs = house.airflow.api.runs("consume_example")
    return [
        text
        for run in runs
        if run["state"] == "success"
        for text in house.said("consume_example", run["dag_run_id"], "log_news")
        if "partition" in text
    ]


def count_rows(files: list[str]) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in files)
