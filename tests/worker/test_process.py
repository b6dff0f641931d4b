"""A worker as a real process: signals, kills, races."""

import signal
import sys
import threading
from pathlib import Path

import boto3
import psutil
import pytest

from shardline.reasons import AttemptEnd
from shardline.store import open_store
from tests.factories import make_store
from tests.s3_server import s3_server
from tests.waits import until
from tests.worker.prepared import LONG, ONE_BY_ONE, SHARD, Prepared, prepare, run_until_done

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ROWS = [f"document number {n}" for n in range(300)]


def engine(**args: float) -> dict[str, object]:
    return {"model": "stub", "engine": "stub", "engine_args": {"max_num_seqs": 4, **args}}


def assert_whole(prepared: Prepared) -> None:
    assert [line.custom_id for line in prepared.results()] == prepared.ids
    committed = prepared.committed()
    assert len(committed) == len(set(committed))


@pytest.mark.protocol(7, 9)
def test_kill_nine_in_the_middle_loses_and_doubles_nothing(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS, local=LONG)
    worker = prepared.start(env=ONE_BY_ONE)
    worker.read_until("segment 1 committed")
    worker.signal(signal.SIGKILL)
    assert worker.wait() == -signal.SIGKILL
    assert prepared.run() == 0
    assert_whole(prepared)
    assert [a.end for a in prepared.attempts()] == [None, AttemptEnd.DONE]
    assert prepared.attempts()[1].resumed_rows > 0


@pytest.mark.protocol(12)
def test_sigterm_lets_running_rows_finish_and_exits_75(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS, local=LONG)
    worker = prepared.start(env=ONE_BY_ONE)
    worker.read_until("segment 0 committed")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 75
    (record,) = prepared.attempts()
    assert record.end is AttemptEnd.DRAINED
    assert record.seconds.drain > 0
    assert prepared.run() == 0
    assert_whole(prepared)


def test_a_second_sigterm_commits_at_once(tmp_path: Path) -> None:
    texts = [*ROWS[:20], "the longest of all the documents [stub:hang]"]
    prepared = prepare(tmp_path, texts, local=engine(latency_s=0.01))
    worker = prepared.start(env={"SHARDLINE_STALL_S": "60", "SHARDLINE_DRAIN_S": "60"})
    worker.read_until("engine is up")
    worker.signal(signal.SIGTERM)
    worker.read_until("draining")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 75
    assert prepared.attempts()[0].end is AttemptEnd.DRAINED


def test_a_drain_ends_by_its_budget_whatever_the_engine_does(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, [*ROWS[:20], "long long long [stub:hang]"], local=engine())
    worker = prepared.start(env={"SHARDLINE_STALL_S": "60", "SHARDLINE_DRAIN_S": "1"})
    worker.read_until("engine is up")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 75


@pytest.mark.protocol(10, 12)
def test_a_drain_waits_for_no_known_good_request_and_judges_nobody(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, [*ROWS[:20], "x [stub:die]"], local=engine(latency_s=3))
    worker = prepared.start(env={"SHARDLINE_STALL_S": "60", "SHARDLINE_DRAIN_S": "1"})
    worker.read_until("engine is up")
    worker.read_until("engine is up")  # and now it is to do a known-good request
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 75
    (record,) = prepared.attempts()
    assert (record.end, record.convictions) == (AttemptEnd.DRAINED, [])


@pytest.mark.protocol(11, 12)
def test_a_drain_into_a_store_that_is_gone_exits_69_by_its_budget(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS, local=LONG)
    env = {"SHARDLINE_STORE_PATIENCE_S": "600", "SHARDLINE_DRAIN_S": "1"}
    worker = prepared.start(env={**ONE_BY_ONE, **env})
    worker.read_until("segment 0 committed")
    worker.signal(signal.SIGSTOP)  # or it might make the folder anew before the file is there
    segments = tmp_path / "root" / prepared.plan.layout.segments(SHARD)
    segments.rename(segments.with_name("moved"))
    segments.write_text("a file where the folder was: every put fails")
    worker.signal(signal.SIGTERM)
    worker.signal(signal.SIGCONT)
    assert worker.wait() == 69


@pytest.mark.protocol(13)
def test_the_worker_drains_when_its_parent_is_killed(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS, local=LONG)
    script = tmp_path / "parent.py"
    script.write_text(
        "from shardline.runners.local import run_worker\n"
        f"run_worker({prepared.store.uri!r}, {prepared.plan.job_id!r}, {SHARD!r},\n"
        "           on_start=lambda w: print(w.pid, flush=True),\n"
        f"           env={ONE_BY_ONE | {'SHARDLINE_SEGMENT_S': '0.1'}!r})\n"
    )
    parent = psutil.Popen(
        [sys.executable, str(script)], stdout=-1, text=True, start_new_session=True
    )
    worker = psutil.Process(int(parent.stdout.readline()))
    try:
        until("committed row", prepared.committed, while_it=worker.is_running)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    worker.wait(60)
    assert prepared.attempts()[0].end is AttemptEnd.DRAINED


@pytest.mark.protocol(8)
def test_two_workers_on_one_shard_make_one_result(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS, local=engine(latency_s=0.005))
    workers = [prepared.start() for _ in range(3)]
    codes: list[int] = []
    waits = [threading.Thread(target=lambda w=w: codes.append(w.wait())) for w in workers]
    for wait in waits:
        wait.start()
    for wait in waits:
        wait.join()
    assert codes == [0, 0, 0]
    assert [line.custom_id for line in prepared.results()] == prepared.ids


@pytest.mark.protocol(8)
def test_two_workers_race_on_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as env:
        for key, value in env.items():
            monkeypatch.setenv(key, value)
        boto3.client("s3").create_bucket(Bucket="lake")
        store = open_store("s3://lake/root")
        prepared = prepare(tmp_path, ROWS[:100], store=store, local=engine(latency_s=0.01))
        first, second = prepared.start(), prepared.start()
        first.read_until("segment 0 committed")
        first.signal(signal.SIGKILL)
        first.wait()
        assert second.wait() == 0
        assert [line.custom_id for line in prepared.results()] == prepared.ids


@pytest.mark.protocol(10)
@pytest.mark.parametrize("marker", ["die", "hang", "kill"])
def test_a_poison_document_is_the_only_one_convicted(tmp_path: Path, marker: str) -> None:
    texts = [*ROWS[:60], f"poison [stub:{marker}]"]
    prepared = prepare(tmp_path, texts, local=engine(latency_s=0.002))
    codes = run_until_done(prepared)
    assert codes[-1] == 0
    assert set(codes[:-1]) <= {-signal.SIGKILL}
    reason = "stalled" if marker == "hang" else "engine_killer"
    assert prepared.reasons() == {60: reason}


@pytest.mark.protocol(10)
def test_a_sick_machine_convicts_nobody(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, [*ROWS[:20], "x [stub:sick]"], local=engine(latency_s=0.002))
    assert prepared.run() == 70
    (record,) = prepared.attempts()
    assert record.convictions == []
    assert "known-good" in record.message


def test_the_log_of_a_killed_worker_is_in_the_store_up_to_its_last_segment(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS, local=engine(latency_s=0.01))
    worker = prepared.start()
    worker.read_until("segment 1 committed")
    worker.signal(signal.SIGKILL)
    worker.wait()
    path = prepared.plan.layout.log(SHARD, prepared.attempts()[0].attempt)
    kept = prepared.store.read(path).decode()
    assert "segment 0 committed" in kept
    assert "document number" not in kept


def test_the_liveness_file_is_touched_while_the_worker_works(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS[:20])
    alive = tmp_path / "alive"
    assert prepared.run(env={"SHARDLINE_LIVENESS_FILE": str(alive)}) == 0
    assert alive.exists()


@pytest.mark.protocol(12)
def test_a_root_that_cannot_be_written_is_a_store_that_refuses(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file")
    prepared = prepare(tmp_path / "elsewhere", ROWS[:2], store=make_store(tmp_path / "elsewhere"))
    lost = Prepared(prepared.store, prepared.plan, prepared.ids)
    lost.store.uri = (tmp_path / "root" / "below").as_uri()
    assert lost.run() == 77
