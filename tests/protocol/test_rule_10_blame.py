"""PROTOCOL 9, 10, 11: what was in flight, who is to blame, and what an attempt costs its shard."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from uuid6 import uuid7

from shardline.errors import StoreUnavailable
from shardline.isolation import History
from shardline.isolation import read_history as blame
from shardline.plan import Plan
from shardline.reasons import AttemptEnd, ExitCode
from shardline.rows import Attempt
from shardline.runners.local import LocalWorker
from shardline.runners.retry import Outcome, Verdict, decide
from shardline.runners.shard import infer_shard, read_history
from shardline.store import Store
from shardline.worker.stop import Stop
from tests.protocol.walks import MortalStore, run_attempt, watch_engine
from tests.worker.in_process import ProcessDied
from tests.worker.prepared import LONG, ONE_BY_ONE, QUICK, SHARD, Prepared, prepare

pytestmark = [pytest.mark.timeout(300)]

LONGEST = "a good document, and longest, so fed first"


def read_record(store: Store, plan: Plan, attempt: str) -> Attempt:
    return msgspec.json.decode(store.read(plan.layout.attempt(SHARD, attempt)), type=Attempt)


def fed_rows(record: Attempt) -> set[int]:
    return {row for first, last in record.fed for row in range(first, last + 1)}


# 9: the record before the feed


@pytest.mark.protocol(9)
def test_every_row_is_in_the_record_in_the_store_before_the_engine_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = {"model": "stub", "engine": "stub", "engine_args": {"max_num_seqs": 2}}
    prepared = prepare(tmp_path, [f"document {n}" for n in range(40)], local=engine)
    attempt = str(uuid7())
    seen: list[str] = []

    def look(custom_id: str, text: str) -> None:
        record = read_record(prepared.store, prepared.plan, attempt)
        assert prepared.ids.index(custom_id) in fed_rows(record)
        seen.append(custom_id)

    watch_engine(monkeypatch, look)
    code = run_attempt(prepared.store, prepared.plan, SHARD, tmp_path, attempt=attempt)
    assert code is ExitCode.DONE
    assert sorted(seen) == sorted(prepared.ids)


@pytest.mark.protocol(9, 10)
def test_every_group_is_in_the_record_before_the_engine_sees_one_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"document {n}" for n in range(10)] + ["x [stub:die]"]
    engine = {"model": "stub", "engine": "stub", "engine_args": {"latency_s": 0.02}}
    prepared = prepare(tmp_path, texts, local=engine)
    attempt = str(uuid7())
    sizes: list[int] = []

    def look(custom_id: str, text: str) -> None:
        if custom_id == "known-good":
            return
        suspects = read_record(prepared.store, prepared.plan, attempt).suspects
        if suspects:
            assert prepared.ids.index(custom_id) in suspects[-1]
            sizes.append(len(suspects[-1]))

    watch_engine(monkeypatch, look)
    code = run_attempt(prepared.store, prepared.plan, SHARD, tmp_path, attempt=attempt)
    assert code is ExitCode.DONE
    assert prepared.reasons() == {10: "engine_killer"}
    assert max(sizes) == 4
    assert sizes[-1] == 1


@pytest.mark.protocol(9)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_between_the_record_and_the_feed_blames_rows_once_and_convicts_none(
    tmp_path: Path, moment: str
) -> None:
    prepared = prepare(tmp_path, [f"document {n}" for n in range(10)])
    writes: list[int] = []

    def note(number: int, name: str, path: str) -> None:
        if name == "write" and "/attempts/" in path:
            writes.append(number)

    calm = prepare(tmp_path / "calm", [f"document {n}" for n in range(10)])
    run_attempt(MortalStore(calm.store.uri, on=note), calm.plan, SHARD, tmp_path)
    reserve = writes[1]  # the first is the record itself
    dying = MortalStore(prepared.store.uri, reserve, moment)
    with pytest.raises(ProcessDied):
        run_attempt(dying, prepared.plan, SHARD, tmp_path)
    (record,) = prepared.attempts()
    assert record.end is None
    assert fed_rows(record) == (set() if moment == "before" else set(range(10)))
    assert run_attempt(prepared.store, prepared.plan, SHARD, tmp_path) is ExitCode.DONE
    assert prepared.reasons() == {}
    assert prepared.attempts()[1].suspects == []


# 10: whatever poison a shard holds, it gets done


def run_to_the_end(prepared: Prepared, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Attempts as a runner makes them, until the shard is done; how many there were."""
    for number in range(1, 60):
        store = MortalStore(prepared.store.uri)
        watch_engine(monkeypatch, kill=store.die)
        code: int | None
        try:
            code = int(run_attempt(store, prepared.plan, SHARD, folder, stall_s=0.4))
        except ProcessDied:
            code = -9
            close_record(prepared, code)
        outcomes = read_history(prepared.store, prepared.plan, SHARD, 1)
        if code == ExitCode.DONE:
            outcomes = [*outcomes, Outcome(code, made_progress=True)]
        decision = decide(outcomes)
        assert decision.verdict in (Verdict.DONE, Verdict.RETRY), decision.reason
        if decision.verdict is Verdict.DONE:
            return number
    raise AssertionError("no end in sight")


def close_record(prepared: Prepared, code: int) -> None:
    record = prepared.attempts()[-1]
    record.exit_code = code
    path = prepared.plan.layout.attempt(SHARD, record.attempt)
    prepared.store.write(path, msgspec.json.encode(record))


def check_poison(
    poison: dict[int, str], rows: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"document {n}" for n in range(rows)]
    for n, marker in poison.items():
        texts[n] += f" [stub:{marker}]"
    prepared = prepare(folder, texts)
    run_to_the_end(prepared, folder, monkeypatch)
    assert set(prepared.reasons()) == set(poison)
    assert [line.custom_id for line in prepared.results()] == prepared.ids


@pytest.mark.protocol(10, 11)
@pytest.mark.parametrize(
    ("poison", "rows"),
    [
        ({0: "die"}, 1),
        ({0: "hang"}, 1),
        ({0: "kill"}, 1),
        ({0: "die", 1: "error=bad_schema"}, 2),
        ({0: "kill", 1: "error=bad_schema", 2: "error=bad_schema"}, 3),
        ({0: "kill", 5: "kill"}, 8),
        ({2: "die", 3: "die", 4: "die"}, 9),
        ({0: "die", 1: "kill"}, 2),
    ],
)
def test_a_shard_gets_done_whatever_poison_it_holds(
    poison: dict[int, str], rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_poison(poison, rows, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.protocol(10, 11)
@given(
    poison=st.dictionaries(
        st.integers(0, 29), st.sampled_from(["die", "hang", "kill"]), min_size=1, max_size=5
    ),
    rows=st.integers(30, 60),
)
@settings(
    max_examples=8,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # to shrink a failure takes minutes
)
def test_any_poison_is_convicted_and_nobody_else(
    poison: dict[int, str],
    rows: int,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_poison(poison, rows, tmp_path_factory.mktemp("poison"), monkeypatch)


# 10: told to stop in the middle of it


def put_vanished(prepared: Prepared, suspects: list[list[int]], rows: int) -> None:
    """An attempt that vanished with its last group in flight."""
    path = prepared.plan.layout.attempt(SHARD, "000")
    record = Attempt("000", SHARD, 1, "h", 1, "t", fed=[(0, rows - 1)], suspects=suspects)
    prepared.store.write(path, msgspec.json.encode(record))


@pytest.mark.protocol(10, 12)
def test_a_drain_before_the_last_accused_row_could_be_judged_is_a_drain(tmp_path: Path) -> None:
    """It must not look like a shard whose rows are gone: 65 would be its death."""
    engine = {"model": "stub", "engine": "stub", "engine_args": {"start_s": 60}}
    prepared = prepare(tmp_path, ["the only one"], local=engine)
    put_vanished(prepared, [[0]], 1)
    stop = Stop()
    stop.on_signal()
    code = run_attempt(prepared.store, prepared.plan, SHARD, tmp_path, stop=stop)
    assert code is ExitCode.DRAINED
    assert prepared.attempts()[-1].end is AttemptEnd.DRAINED


@pytest.mark.protocol(10, 12)
def test_a_drain_while_the_last_row_takes_its_engine_down_is_a_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(tmp_path, ["x [stub:die]"])
    stop = Stop()

    def stop_when_alone(custom_id: str, text: str) -> None:
        if prepared.attempts() and prepared.attempts()[-1].suspects:
            stop.draining.set()

    watch_engine(monkeypatch, stop_when_alone)
    assert (
        run_attempt(prepared.store, prepared.plan, SHARD, tmp_path, stop=stop) is ExitCode.DRAINED
    )
    assert run_attempt(prepared.store, prepared.plan, SHARD, tmp_path) is ExitCode.DONE
    assert prepared.reasons() == {0: "engine_killer"}


@pytest.mark.protocol(10)
def test_convictions_of_a_machine_that_may_be_sick_are_in_the_record_and_not_in_a_segment(
    tmp_path: Path,
) -> None:
    prepared = prepare(tmp_path, ["good", *(f"x{n} [stub:die]" for n in range(3))])
    code = run_attempt(prepared.store, prepared.plan, SHARD, tmp_path)
    assert code is ExitCode.ENGINE_FAILED
    assert prepared.attempts()[-1].convictions == [1, 2, 3]
    assert set(prepared.committed()) <= {prepared.ids[0]}


@pytest.mark.protocol(10)
@pytest.mark.parametrize(
    ("texts", "asked"), [([LONGEST, "x [stub:die]"], LONGEST), (["x [stub:die]"], "Hello")]
)
def test_the_known_good_request_is_a_row_already_done_and_else_a_built_in_one(
    texts: list[str], asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes: list[str] = []

    def note(custom_id: str, text: str) -> None:
        if custom_id == "known-good":
            probes.append(text)

    watch_engine(monkeypatch, note)
    engine = {"model": "stub", "engine": "stub", "engine_args": {"max_num_seqs": 1}}
    prepared = prepare(tmp_path, texts, local=engine)
    assert run_attempt(prepared.store, prepared.plan, SHARD, tmp_path) is ExitCode.DONE
    assert probes == [asked] * 3


# 11: what is charged


def outcomes_of(codes: Iterable[int | None]) -> list[Outcome]:
    return [Outcome(code, made_progress=False) for code in codes]


@pytest.mark.protocol(11)
@pytest.mark.parametrize("code", [-15, -2, -1, 143, 130, 129])
def test_a_worker_that_a_signal_ended_before_it_could_drain_is_free(code: int) -> None:
    decision = decide(outcomes_of([code] * 9))
    assert (decision.verdict, decision.is_charged) == (Verdict.RETRY, False)


@pytest.mark.protocol(11)
@pytest.mark.parametrize("code", [-9, -11, 137, 139])
def test_a_worker_that_was_killed_or_crashed_is_charged(code: int) -> None:
    assert decide(outcomes_of([code])).is_charged
    assert decide(outcomes_of([code] * 3)).verdict is Verdict.DEAD


@pytest.mark.protocol(11)
def test_free_attempts_between_them_forgive_no_charge_and_add_none() -> None:
    free = [ExitCode.DRAINED, ExitCode.STORE_UNREACHABLE, None, -15]
    assert decide(outcomes_of([-9, *free, -9, *free])).verdict is Verdict.RETRY
    assert decide(outcomes_of([-9, *free, -9, *free, -9])).verdict is Verdict.DEAD


@pytest.mark.protocol(11)
def test_while_the_store_is_down_no_row_is_fed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = {
        "model": "stub",
        "engine": "stub",
        "engine_args": {"latency_s": 0.01, "max_num_seqs": 1},
    }
    prepared = prepare(tmp_path, [f"document {n}" for n in range(100)], local=engine)
    fed: list[str] = []
    fed_when_down: list[int] = []

    def go_down(number: int, name: str, path: str) -> None:
        if "/segments/" in path and name == "create" and len(fed_when_down) < 2:
            fed_when_down.append(len(fed))
            raise ConnectionResetError("scripted")

    watch_engine(monkeypatch, lambda custom_id, text: fed.append(custom_id))
    store = MortalStore(prepared.store.uri, on=go_down)
    monkeypatch.setattr("shardline.patience._FIRST_PAUSE_S", 1.0)
    code = run_attempt(store, prepared.plan, SHARD, tmp_path, segment_rows=1_000)
    assert code is ExitCode.DONE
    # a second lies between the two, time for all 100; a few went before the loop heard of it
    assert fed_when_down[1] - fed_when_down[0] <= 50
    assert sorted(fed) == sorted(prepared.ids)


@pytest.mark.protocol(11, 12)
def test_a_store_that_stays_down_ends_the_attempt_with_69_and_it_costs_the_shard_nothing(
    tmp_path: Path,
) -> None:
    prepared = prepare(tmp_path, ["a", "b"])

    def down(number: int, name: str, path: str) -> None:
        if "/segments/" in path and name == "create":
            raise StoreUnavailable("scripted")

    store = MortalStore(prepared.store.uri, on=down)
    code = run_attempt(store, prepared.plan, SHARD, tmp_path, store_patience_s=0.1)
    assert code is ExitCode.STORE_UNREACHABLE
    assert not decide(outcomes_of([int(code)])).is_charged


@pytest.mark.slow
@pytest.mark.protocol(11)
def test_a_worker_told_to_stop_as_soon_as_it_starts_costs_its_shard_nothing(tmp_path: Path) -> None:
    """A real one: Python is still importing, and no handler is there."""
    prepared = prepare(tmp_path, [f"document {n}" for n in range(100)], local=LONG)
    outcome = infer_shard(
        prepared.store,
        prepared.plan,
        SHARD,
        on_start=LocalWorker.drain,
        env={**QUICK, **ONE_BY_ONE},
    )
    assert outcome.exit_code in (-signal.SIGTERM, ExitCode.DRAINED)
    assert outcome.decision.verdict is Verdict.RETRY
    assert not outcome.decision.is_charged
    assert infer_shard(prepared.store, prepared.plan, SHARD, env=QUICK).is_done


@pytest.mark.protocol(9, 11)
def test_an_attempt_that_lost_its_store_is_closed_by_its_runner_and_blames_no_row(
    tmp_path: Path,
) -> None:
    prepared = prepare(tmp_path, ["a", "b"])
    segments = tmp_path / "root" / prepared.plan.layout.segments(SHARD)
    segments.parent.mkdir(parents=True)
    segments.write_text("a file where the folder should be: every put fails")
    env = {**QUICK, "SHARDLINE_STORE_PATIENCE_S": "0.1"}
    try:
        infer_shard(prepared.store, prepared.plan, SHARD, env=env)
    finally:
        segments.unlink()
    (record,) = prepared.attempts()
    assert (record.exit_code, record.end) == (69, AttemptEnd.STORE_UNREACHABLE)
    assert blame([record], ()) == History()
