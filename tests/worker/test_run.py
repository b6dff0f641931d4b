from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardline.disk import local_disk
from shardline.errors import StoreRefused, StoreUnavailable
from shardline.reasons import AttemptEnd, ExitCode
from shardline.rows import Attempt
from shardline.runners.generations import cancel_generation
from shardline.worker.__main__ import main
from tests.factories import make_store
from tests.worker.in_process import FaultyStore, ProcessDied, attempt, die_at, slow
from tests.worker.prepared import SHARD, Prepared, prepare

ROWS = [f"document number {n}" for n in range(40)]
SLOW_ENGINE = {
    "model": "stub",
    "engine": "stub",
    "engine_args": {"latency_s": 0.02, "max_num_seqs": 2},
}

pytestmark = pytest.mark.timeout(60)


def half_done(prepared: Prepared) -> bool:
    return len(prepared.committed()) >= 14


def ids_of(prepared: Prepared) -> list[str]:
    return [line.custom_id for line in prepared.results()]


@pytest.mark.protocol(7)
def test_every_request_has_one_line_in_the_order_of_the_shard(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS)
    assert attempt(prepared, tmp_path) is ExitCode.DONE
    assert ids_of(prepared) == prepared.ids
    assert prepared.reasons() == {}


@pytest.mark.protocol(4, 9)
def test_an_attempt_records_what_it_did(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS)
    attempt(prepared, tmp_path, pod_uid="uid-1", node="node-1")
    (record,) = prepared.attempts()
    assert (record.end, record.exit_code) == (AttemptEnd.DONE, 0)
    assert record.fed == [(0, 39)]
    assert record.counts.results == 40
    assert record.counts.prompt_tokens == 120
    assert (record.pod_uid, record.node) == ("uid-1", "node-1")
    assert record.seconds.start > 0


def test_progress_counts_committed_rows_and_ends_with_all(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, [*ROWS, "bad [stub:error=too_long]"])
    attempt(prepared, tmp_path)
    (progress,) = prepared.progress()
    assert (progress.state, progress.rows_total, progress.rows_done) == ("ended", 41, 41)
    assert progress.rows_dead == 1


@pytest.mark.protocol(7)
def test_a_shard_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS)
    attempt(prepared, tmp_path)
    assert attempt(prepared, tmp_path) is ExitCode.DONE
    assert len(prepared.attempts()) == 1


@pytest.mark.protocol(7)
def test_resume_skips_rows_already_committed(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS, local=SLOW_ENGINE)
    assert attempt(prepared, tmp_path, stop_when=half_done) is ExitCode.DRAINED
    committed = prepared.committed()
    assert 14 <= len(committed) < 40
    assert attempt(prepared, tmp_path) is ExitCode.DONE
    assert sorted(prepared.committed()) == sorted(prepared.ids)
    assert prepared.attempts()[1].resumed_rows == len(committed)


def test_longer_rows_are_fed_first(tmp_path: Path) -> None:
    texts = ["short", "a much longer document than all others", "middle one"]
    engine = {"model": "stub", "engine": "stub", "engine_args": {"max_num_seqs": 1}}
    prepared = prepare(tmp_path, texts, local=engine)
    attempt(prepared, tmp_path, segment_s=60, segment_rows=5000)
    assert prepared.committed() == [prepared.ids[1], prepared.ids[2], prepared.ids[0]]


@pytest.mark.protocol(23)
def test_segments_are_cut_by_rows(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS, local=SLOW_ENGINE)
    attempt(prepared, tmp_path, segment_s=60, segment_rows=16)
    assert prepared.attempts()[0].counts.segments > 1


@pytest.mark.protocol(3, 12)
def test_a_shard_whose_bytes_changed_is_wrong_input(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS)
    path = prepared.plan.layout.shard(SHARD)
    prepared.store.write(path, prepared.store.read(path).replace(b"number 3", b"number 4"))
    assert attempt(prepared, tmp_path) is ExitCode.WRONG_INPUT
    assert "sidecar" in prepared.attempts()[0].message


@pytest.mark.protocol(12)
def test_a_shard_that_does_not_exist_is_wrong_input(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS)
    prepared.store.delete(prepared.plan.layout.sidecar(SHARD))
    assert attempt(prepared, tmp_path) is ExitCode.WRONG_INPUT


@pytest.mark.protocol(12)
def test_engine_args_that_are_wrong_are_wrong_input(tmp_path: Path) -> None:
    engine = {"model": "stub", "engine": "stub", "engine_args": {"latency": 1}}
    prepared = prepare(tmp_path, ROWS, local=engine)
    assert attempt(prepared, tmp_path) is ExitCode.WRONG_INPUT
    assert "engine_args: " in prepared.attempts()[0].message


@pytest.mark.protocol(12)
def test_an_engine_that_will_not_start_is_its_own_exit(tmp_path: Path) -> None:
    engine = {"model": "stub", "engine": "stub", "engine_args": {"start_fails": True}}
    prepared = prepare(tmp_path, ROWS, local=engine)
    assert attempt(prepared, tmp_path) is ExitCode.ENGINE_FAILED
    assert prepared.attempts()[0].end is AttemptEnd.ENGINE_FAILED


def test_an_engine_that_never_comes_up_is_given_up(tmp_path: Path) -> None:
    engine = {"model": "stub", "engine": "stub", "engine_args": {"start_s": 60}}
    prepared = prepare(tmp_path, ROWS, local=engine)
    assert attempt(prepared, tmp_path, engine_start_s=0.05) is ExitCode.ENGINE_FAILED


@pytest.mark.protocol(12)
def test_the_fetch_of_a_model_is_no_part_of_its_engine_s_start(tmp_path: Path) -> None:
    engine = {"model": "stub", "engine": "stub", "engine_args": {"fetch_s": 0.5}}
    prepared = prepare(tmp_path, ROWS, local=engine)
    assert attempt(prepared, tmp_path, engine_start_s=0.2) is ExitCode.DONE


@pytest.mark.protocol(12)
def test_a_model_that_does_not_come_is_the_store_s_fault_and_not_the_machine_s(
    tmp_path: Path,
) -> None:
    engine = {"model": "stub", "engine": "stub", "engine_args": {"fetch_s": 60}}
    prepared = prepare(tmp_path, ROWS, local=engine)
    code = attempt(prepared, tmp_path, model_fetch_s=0.05)
    assert code is ExitCode.STORE_UNREACHABLE


def test_a_worker_that_fetches_its_model_says_so_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardline.engines.bring_up._SAY_S", 0.01)
    engine = {"model": "stub", "engine": "stub", "engine_args": {"fetch_s": 60}}
    prepared = prepare(tmp_path, ROWS, local=engine)
    words: set[str] = set()

    def has_spoken_thrice(prepared: Prepared) -> bool:
        words.update(word.at for word in prepared.progress())
        return len(words) >= 3

    assert attempt(prepared, tmp_path, stop_when=has_spoken_thrice) is ExitCode.DRAINED


@pytest.mark.protocol(20)
def test_a_cancelled_job_fetches_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardline.engines.bring_up._SAY_S", 0.01)
    engine = {"model": "stub", "engine": "stub", "engine_args": {"fetch_s": 60}}
    prepared = prepare(tmp_path, ROWS, local=engine)

    def cancel(prepared: Prepared) -> bool:
        if prepared.progress():
            cancel_generation(prepared.store, prepared.plan.job_id, 1)
        return False

    assert attempt(prepared, tmp_path, stop_when=cancel) is ExitCode.CANCELLED


def test_a_drain_does_not_wait_for_an_engine_that_is_coming_up(tmp_path: Path) -> None:
    engine = {"model": "stub", "engine": "stub", "engine_args": {"start_s": 60}}
    prepared = prepare(tmp_path, ROWS, local=engine)
    code = attempt(prepared, tmp_path, stop_when=lambda p: bool(p.progress()))
    assert code is ExitCode.DRAINED


# what documents do


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x [stub:error=unsupported_content]", "unsupported_content"),
        ("x [stub:invalid]", "invalid_output"),
        (" ", "empty_prompt"),
        ("word " * 30, "too_long"),
        ("x [stub:die]", "engine_killer"),
        ("x [stub:hang]", "stalled"),
    ],
)
def test_what_one_document_does_wrong_is_its_own_dead_letter(
    tmp_path: Path, text: str, reason: str
) -> None:
    engine = {"model": "stub", "engine": "stub", "engine_args": {"max_model_len": 20}}
    prepared = prepare(tmp_path, [*ROWS, text], local=engine, output={"choices": ["a", "b"]})
    assert attempt(prepared, tmp_path) is ExitCode.DONE
    assert prepared.reasons() == {40: reason}
    assert ids_of(prepared) == prepared.ids


@pytest.mark.protocol(10)
def test_one_poison_document_costs_three_restarts(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, [*ROWS, "x [stub:die]"])
    attempt(prepared, tmp_path)
    (record,) = prepared.attempts()
    assert record.counts.engine_restarts == 3
    assert record.convictions == [40]
    assert record.suspects[-1] == [40]


@pytest.mark.protocol(10)
def test_three_poison_documents_make_the_machine_suspect_until_another_repeats_them(
    tmp_path: Path,
) -> None:
    prepared = prepare(tmp_path, [*ROWS, *(f"x{n} [stub:die]" for n in range(3))])
    assert attempt(prepared, tmp_path) is ExitCode.ENGINE_FAILED
    assert prepared.attempts()[0].convictions == [40, 41, 42]
    assert not set(prepared.committed()) & set(prepared.ids[40:])
    assert attempt(prepared, tmp_path) is ExitCode.DONE
    assert prepared.reasons() == dict.fromkeys((40, 41, 42), "engine_killer")
    assert prepared.attempts()[1].convictions == []


@pytest.mark.protocol(10)
def test_many_poison_documents_are_found_three_an_attempt(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, [*ROWS, *(f"x{n} [stub:die]" for n in range(7))])
    codes = [attempt(prepared, tmp_path) for _ in range(4)]
    assert codes[-1] is ExitCode.DONE
    assert set(prepared.reasons()) == set(range(40, 47))


@pytest.mark.protocol(12)
@pytest.mark.parametrize("reason", ["bad_parameter", "bad_schema"])
def test_first_rows_that_all_die_of_the_job_are_wrong_input_and_not_committed(
    tmp_path: Path, reason: str
) -> None:
    texts = [f"{text} [stub:error={reason}]" for text in ROWS]
    prepared = prepare(tmp_path, texts)
    assert attempt(prepared, tmp_path, early_rows=20) is ExitCode.WRONG_INPUT
    assert prepared.committed() == []
    assert reason in prepared.attempts()[0].message


def test_a_small_shard_whose_rows_all_die_of_the_job_is_wrong_input_too(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ["a", "b"], parameters={"temperature": -3})
    assert attempt(prepared, tmp_path) is ExitCode.WRONG_INPUT
    assert "temperature" in prepared.attempts()[0].message


@pytest.mark.protocol(12)
def test_rows_that_all_die_of_themselves_are_a_done_shard(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, [f"{text} [stub:error=too_long]" for text in ROWS])
    assert attempt(prepared, tmp_path, early_rows=20) is ExitCode.DONE
    assert set(prepared.reasons().values()) == {"too_long"}


# being told to stop


@pytest.mark.protocol(20)
def test_a_cancelled_job_starts_no_engine(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS)
    prepared.store.put_once(prepared.plan.layout.cancel(3), b"x")
    assert attempt(prepared, tmp_path, generation=3) is ExitCode.CANCELLED
    assert prepared.attempts()[0].end is AttemptEnd.CANCELLED
    assert prepared.committed() == []


@pytest.mark.protocol(20, 21)
def test_a_cancel_of_another_generation_is_nobodys_business(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS)
    prepared.store.put_once(prepared.plan.layout.cancel(3), b"x")
    assert attempt(prepared, tmp_path, generation=4) is ExitCode.DONE


@pytest.mark.protocol(20)
def test_a_running_worker_sees_the_cancel_at_its_next_segment(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS, local=SLOW_ENGINE)

    def cancel(p: Prepared) -> bool:
        if half_done(p):
            p.store.put_once(p.plan.layout.cancel(1), b"x")
        return False

    assert attempt(prepared, tmp_path, stop_when=cancel) is ExitCode.CANCELLED
    assert prepared.store.exists(prepared.plan.layout.results(SHARD)) is False


# the store fails


@pytest.mark.protocol(11)
def test_an_outage_pauses_the_feed_and_nothing_is_lost(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS, local=SLOW_ENGINE)

    def fault(n: int, path: str, moment: str) -> None:
        if 8 <= n < 12:
            raise StoreUnavailable("scripted")

    store = FaultyStore(prepared.store.uri, fault)
    assert attempt(prepared, tmp_path, store=store, store_patience_s=30) is ExitCode.DONE
    assert sorted(prepared.committed()) == sorted(prepared.ids)


@pytest.mark.protocol(11, 12)
def test_an_outage_longer_than_our_patience_has_its_own_exit(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS, local=SLOW_ENGINE)

    def fault(n: int, path: str, moment: str) -> None:
        if n >= 6:
            raise StoreUnavailable("scripted")

    store = FaultyStore(prepared.store.uri, fault)
    assert attempt(prepared, tmp_path, store=store) is ExitCode.STORE_UNREACHABLE
    assert attempt(prepared, tmp_path) is ExitCode.DONE
    assert sorted(prepared.committed()) == sorted(prepared.ids)


@pytest.mark.protocol(12)
@pytest.mark.parametrize("first", [0, 6], ids=["from the start", "in the middle"])
def test_a_store_that_refuses_has_its_own_exit_and_is_not_waited_for(
    tmp_path: Path, first: int
) -> None:
    prepared = prepare(tmp_path, ROWS, local=SLOW_ENGINE)

    def fault(n: int, path: str, moment: str) -> None:
        if n >= first:
            raise StoreRefused("scripted")

    store = FaultyStore(prepared.store.uri, fault)
    code = attempt(prepared, tmp_path, store=store, store_patience_s=600)
    assert code is ExitCode.STORE_REFUSED
    assert attempt(prepared, tmp_path) is ExitCode.DONE
    assert sorted(prepared.committed()) == sorted(prepared.ids)


@pytest.mark.protocol(12)
def test_a_machine_without_room_for_the_shard_looks_sick(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS)

    class FullDisk(FaultyStore):
        def fetch(self, path: str, folder: Path) -> Path:
            with local_disk(folder):
                Path("/dev/full").write_bytes(self.read(path))
            return folder

    store = FullDisk(prepared.store.uri, slow(0))
    assert attempt(prepared, tmp_path, store=store) is ExitCode.ENGINE_FAILED
    (record,) = prepared.attempts()
    assert record.end is AttemptEnd.ENGINE_FAILED
    assert "No space left on device" in record.message


def test_a_slow_store_costs_time_and_no_row(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS)
    store = FaultyStore(prepared.store.uri, slow(0.02))
    assert attempt(prepared, tmp_path, store=store) is ExitCode.DONE
    assert sorted(prepared.committed()) == sorted(prepared.ids)


@pytest.mark.protocol(8)
@pytest.mark.parametrize("number", range(0, 12, 1))
def test_a_lost_reply_to_any_write_doubles_nothing(tmp_path: Path, number: int) -> None:
    prepared = prepare(tmp_path, ROWS)

    def fault(n: int, path: str, moment: str) -> None:
        if n == number and moment == "after":
            raise StoreUnavailable("the reply was lost")

    store = FaultyStore(prepared.store.uri, fault)
    assert attempt(prepared, tmp_path, store=store, store_patience_s=30) is ExitCode.DONE
    assert sorted(prepared.committed()) == sorted(prepared.ids)


# crashes


def reference(folder: Path) -> bytes:
    prepared = prepare(folder, ROWS)
    attempt(prepared, folder)
    return prepared.store.read(prepared.plan.layout.results(SHARD))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return reference(tmp_path_factory.mktemp("reference"))


moments = st.sampled_from(["before", "after"])
crashes = st.lists(st.tuples(st.integers(0, 25), moments), min_size=1, max_size=2)


@pytest.mark.protocol(7, 8)
@pytest.mark.slow
@given(crashes=crashes)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
def test_wherever_attempts_crash_the_results_are_those_of_a_calm_run(
    crashes: list[tuple[int, str]],
    tmp_path_factory: pytest.TempPathFactory,
    expected: bytes,
) -> None:
    folder = tmp_path_factory.mktemp("crashes")
    prepared = prepare(folder, ROWS)
    for number, moment in crashes:
        store = FaultyStore(prepared.store.uri, die_at(number, moment))
        try:
            attempt(prepared, folder, store=store)
        except ProcessDied:
            continue
    assert attempt(prepared, folder) is ExitCode.DONE
    assert prepared.store.read(prepared.plan.layout.results(SHARD)) == expected
    committed = prepared.committed()
    assert len(committed) == len(set(committed))


@pytest.mark.protocol(9)
def test_rows_are_in_the_record_before_they_are_in_a_segment(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS, local=SLOW_ENGINE)
    store = FaultyStore(prepared.store.uri, die_at(12, "after"))
    with pytest.raises(ProcessDied):
        attempt(prepared, tmp_path, store=store)
    (record,) = prepared.attempts()
    fed = {row for first, last in record.fed for row in range(first, last + 1)}
    assert {prepared.ids.index(custom_id) for custom_id in prepared.committed()} <= fed
    assert record.end is None


@pytest.mark.protocol(10)
def test_the_row_that_was_alone_in_two_vanished_workers_is_convicted(tmp_path: Path) -> None:
    """A worker that is killed leaves a record without an end; here the records are written by hand."""
    prepared = prepare(tmp_path, ROWS)
    layout = prepared.plan.layout
    for n, suspects in enumerate([[], [], [[0, 1, 2, 3]], [[0], [1]], [[1]]]):
        record = Attempt(f"00{n}", SHARD, 1, "h", 1, "t", fed=[(0, 9)], suspects=suspects)
        prepared.store.write(layout.attempt(SHARD, f"00{n}"), msgspec.json.encode(record))
    assert attempt(prepared, tmp_path) is ExitCode.DONE
    assert prepared.reasons() == {1: "engine_killer"}


@pytest.mark.protocol(12)
def test_a_machine_without_scratch_space_looks_sick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    job = f"{make_store(tmp_path).uri}/jobs/j"
    assert main(["--job", job, "--shard", SHARD]) == ExitCode.ENGINE_FAILED
