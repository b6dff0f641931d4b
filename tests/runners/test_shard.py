import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardline.errors import StoreUnavailable
from shardline.reasons import AttemptEnd
from shardline.runners.retry import Verdict
from shardline.runners.shard import ShardOutcome, infer_shard
from shardline.store import ObjectInfo, Store, open_store
from tests.worker.prepared import QUICK, SHARD, Prepared, prepare

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ROWS = [f"document number {n}" for n in range(40)]


def run(prepared: Prepared, generation: int = 1) -> ShardOutcome:
    return infer_shard(prepared.store, prepared.plan, SHARD, generation, env=QUICK)


def run_until_settled(prepared: Prepared) -> list[ShardOutcome]:
    outcomes = [run(prepared)]
    while outcomes[-1].decision.verdict is Verdict.RETRY:
        outcomes.append(run(prepared))
    return outcomes


def test_a_shard_that_runs_through_is_done(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS)
    outcome = run(prepared)
    assert outcome.is_done
    assert outcome.record
    assert outcome.record.end is AttemptEnd.DONE


def test_a_shard_with_results_starts_no_worker(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS)
    run(prepared)
    assert run(prepared).is_done
    assert len(prepared.attempts()) == 1


@pytest.mark.protocol(10, 11)
def test_a_document_that_kills_workers_is_isolated_and_the_shard_gets_done(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, [*ROWS, "poison [stub:kill]"])
    outcomes = run_until_settled(prepared)
    assert outcomes[-1].is_done
    assert {o.exit_code for o in outcomes[:-1]} == {-signal.SIGKILL}
    assert prepared.reasons() == {40: "engine_killer"}


@pytest.mark.protocol(9)
def test_a_killed_worker_s_record_says_by_which_signal(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, [*ROWS, "poison [stub:kill]"])
    outcome = run(prepared)
    assert outcome.record
    assert (outcome.record.end, outcome.record.exit_code) == (None, -signal.SIGKILL)


@pytest.mark.protocol(11)
def test_three_attempts_that_bring_nothing_kill_the_shard(tmp_path: Path) -> None:
    engine = {"model": "stub", "engine": "stub", "engine_args": {"start_fails": True}}
    outcomes = run_until_settled(prepare(tmp_path, ROWS, local=engine))
    assert [o.exit_code for o in outcomes] == [70, 70, 70]
    assert outcomes[-1].decision.verdict is Verdict.DEAD


@pytest.mark.protocol(11, 21)
def test_a_new_generation_starts_with_a_clean_slate(tmp_path: Path) -> None:
    engine = {"model": "stub", "engine": "stub", "engine_args": {"start_fails": True}}
    prepared = prepare(tmp_path, ROWS, local=engine)
    run_until_settled(prepared)
    assert run(prepared, generation=2).decision.verdict is Verdict.RETRY


@pytest.mark.protocol(4)
def test_a_worker_that_wrote_no_record_gets_one(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ROWS)
    env = {**QUICK, "SHARDLINE_DRAIN_S": "no number"}
    outcome = infer_shard(prepared.store, prepared.plan, SHARD, 1, env=env)
    assert outcome.decision.verdict is Verdict.DEAD
    assert [a.exit_code for a in prepared.attempts()] == [65]


class DownAfterwards(Store):
    """The store of a folder that answers nobody twice, once the worker has ended."""

    def __init__(self, uri: str) -> None:
        plain = open_store(uri)
        super().__init__(plain.uri, plain._objects, plain.folder)
        self.refusals = 0

    def _do_read(self, path: str) -> bytes:
        self._refuse()
        return super()._do_read(path)

    def _do_list(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        self._refuse()
        return super()._do_list(prefix, start_after)

    def _refuse(self) -> None:
        if self.refusals < 2:
            self.refusals += 1
            raise StoreUnavailable("the store is down")


@pytest.mark.protocol(11)
def test_an_outage_when_the_worker_has_ended_does_not_hide_how_it_ended(tmp_path: Path) -> None:
    sick = {"model": "stub", "engine": "stub", "engine_args": {"start_fails": True}}
    prepared = prepare(tmp_path, ROWS, local=sick)
    store = DownAfterwards(prepared.store.uri)
    outcome = infer_shard(store, prepared.plan, SHARD, env=QUICK)
    assert store.refusals == 2
    assert (outcome.exit_code, outcome.decision.is_charged) == (70, True)
