"""Workers that vanish: by a document that takes the whole process with it, and by bad luck.

An out-of-memory kill on cgroup v2 ends every process of the container, so nobody is left to say
which document it was. The records of the attempts are all that the next one knows.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest
from tokenizers import Tokenizer

from samples.tiny_model import make_tiny_model
from shardline.runners.local import LocalWorker
from shardline.runners.retry import Verdict
from shardline.runners.shard import ShardOutcome, infer_shard
from tests.waits import until
from tests.worker import vllm_test_fault
from tests.worker.prepared import LONG, ONE_BY_ONE, QUICK, SHARD, Prepared, prepare

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROJECT = Path(__file__).parents[2]
SNOWMAN = "\u2603"
STUB = {"latency_s": 0.05, "max_num_seqs": 4}


def run(
    prepared: Prepared,
    env: Mapping[str, str] | None = None,
    on_start: Callable[[LocalWorker], None] = lambda _: None,
) -> ShardOutcome:
    env = {**QUICK, **(env or {})}
    return infer_shard(prepared.store, prepared.plan, SHARD, on_start=on_start, env=env)


def run_until_settled(
    prepared: Prepared, env: Mapping[str, str] | None = None
) -> list[ShardOutcome]:
    outcomes = [run(prepared, env)]
    while outcomes[-1].decision.verdict is Verdict.RETRY:
        outcomes.append(run(prepared, env))
    return outcomes


def attempts_with_rows(prepared: Prepared) -> set[str]:
    """Ids of the attempts that committed a row, by the names of their segments."""
    listed = prepared.store.list(prepared.plan.layout.segments(SHARD))
    return {found.path.rsplit("/", 1)[-1].rpartition("-")[0] for found in listed}


def check_isolated(prepared: Prepared, outcomes: list[ShardOutcome], poison: set[int]) -> None:
    """Everybody else has an answer, and no attempt paid that brought one."""
    print(f"{len(outcomes)} attempts for {len(poison)} documents that kill their worker:")
    for number, outcome in enumerate(outcomes, 1):
        print(f"  {number}: exit {outcome.exit_code}, {outcome.decision.reason}")
    assert outcomes[-1].is_done
    assert prepared.reasons() == dict.fromkeys(sorted(poison), "engine_killer")
    assert [line.custom_id for line in prepared.results()] == prepared.ids
    charged = {outcome.attempt for outcome in outcomes if outcome.decision.is_charged}
    assert not charged & attempts_with_rows(prepared)


@pytest.mark.protocol(10, 11)
@pytest.mark.parametrize(("rows", "poison"), [(200, {100}), (1, {0}), (40, {7, 30})])
def test_a_document_that_kills_its_whole_worker_is_isolated_across_attempts(
    tmp_path: Path, rows: int, poison: set[int]
) -> None:
    # of one length, so that they are fed in this order
    texts = [f"{n:03} [stub:{'kill' if n in poison else 'none'}]" for n in range(rows)]
    local = {"model": "stub", "engine": "stub", "engine_args": STUB}
    prepared = prepare(tmp_path, texts, local=local)
    # segments as long as by default: a worker that dies early has committed nothing
    outcomes = run_until_settled(prepared, {"SHARDLINE_SEGMENT_S": "60"})
    check_isolated(prepared, outcomes, poison)
    assert {outcome.exit_code for outcome in outcomes[:-1]} == {-signal.SIGKILL}


@pytest.mark.protocol(10, 11)
def test_so_is_one_that_kills_a_worker_with_a_real_engine(tmp_path: Path) -> None:
    model = make_tiny_model(PROJECT / "var" / "models" / "tiny")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    token = tokenizer.encode(SNOWMAN, add_special_tokens=False).ids[0]
    texts = [f"document number {n}" for n in range(60)]
    texts[30] = f"document {SNOWMAN} number"
    engine_args = {"max_model_len": 512, "max_num_seqs": 4}
    local = {"model": str(model), "engine": "vllm", "engine_args": engine_args}
    prepared = prepare(tmp_path, texts, local=local, parameters__max_tokens=32)
    env = {
        "PYTHONPATH": install_fault(tmp_path / "plugin"),
        "FAULT_TOKEN": str(token),
        "FAULT_MODE": "kill_worker",
        "SHARDLINE_STALL_S": "60",
    }
    outcomes = run_until_settled(prepared, env)
    check_isolated(prepared, outcomes, {30})


def install_fault(folder: Path) -> str:
    """The fault plug-in as an installed distribution that only these workers see."""
    metadata = folder / "vllm_test_fault-1.dist-info"
    metadata.mkdir(parents=True)
    shutil.copy(vllm_test_fault.__file__, folder)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-test-fault\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nfault = vllm_test_fault:register\n"
    )
    return str(folder)


def kill_after_first_segment(prepared: Prepared) -> Callable[[LocalWorker], None]:
    """The node is lost while rows are in flight and some are committed."""

    def watch(worker: LocalWorker) -> None:
        is_alive = psutil.Process(worker.pid).is_running
        until("segment", lambda: attempts_with_rows(prepared), while_it=is_alive)
        os.kill(worker.pid, signal.SIGKILL)

    return lambda worker: threading.Thread(target=watch, args=(worker,)).start()


@pytest.mark.protocol(9, 10, 11)
def test_a_row_in_flight_at_one_lost_node_costs_nothing_extra(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, [f"document {n}" for n in range(200)], local=LONG)
    lost = run(prepared, ONE_BY_ONE, kill_after_first_segment(prepared))
    assert lost.exit_code == -signal.SIGKILL
    assert not lost.decision.is_charged
    in_flight = {
        row for first, last in prepared.attempts()[0].fed for row in range(first, last + 1)
    }
    in_flight -= {prepared.ids.index(name) for name in prepared.committed()}
    assert in_flight
    assert run(prepared).is_done
    second = prepared.attempts()[1]
    assert (second.suspects, second.convictions, second.counts.engine_restarts) == ([], [], 0)
    assert prepared.reasons() == {}
    assert sorted(prepared.committed()) == sorted(prepared.ids)
