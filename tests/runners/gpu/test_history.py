"""What earlier attempts teach the next pod."""

from __future__ import annotations

import pytest

from shardline.reasons import PodOutcome
from shardline.rows import Attempt, EngineMetrics
from shardline.runners.gpu.history import MAX_AVOIDED, Lessons, learn


def record(outcome: PodOutcome | None = None, node: str | None = "n", **fields: object) -> Attempt:
    given = {"pod_outcome": outcome, "node": node, **fields}
    return Attempt("a", "s", 1, "host", 1, "now", **given)  # type: ignore[arg-type]


def test_without_a_history_the_pod_is_as_the_job_file_says() -> None:
    assert learn([]) == Lessons()
    assert learn([record(PodOutcome.DRAINED), record(PodOutcome.EVICTED)]) == Lessons()


@pytest.mark.protocol(10)
def test_nodes_that_looked_sick_are_avoided_each_once_and_the_newest_only() -> None:
    nodes = [f"n{i}" for i in range(MAX_AVOIDED + 2)]
    attempts = [record(PodOutcome.ENGINE_FAILED, node=node) for node in [*nodes, "n3"]]
    avoided = learn(attempts).avoid_nodes
    assert len(avoided) == MAX_AVOIDED
    assert avoided[-1] == "n3"
    assert "n0" not in avoided


@pytest.mark.protocol(10)
def test_a_worker_s_own_word_names_a_sick_node_too() -> None:
    assert learn([record(exit_code=70)]).avoid_nodes == ("n",)
    assert learn([record(exit_code=70, node=None)]).avoid_nodes == ()


def test_each_pod_killed_for_its_memory_halves_what_the_next_one_runs_at_once() -> None:
    killed = record(PodOutcome.OOM_KILLED, metrics=EngineMetrics(max_num_seqs=64))
    assert learn([killed]).max_num_seqs == 32
    assert learn([killed, record(PodOutcome.DRAINED), killed]).max_num_seqs == 16
    assert learn([record(PodOutcome.OOM_KILLED)], slots=100).max_num_seqs == 50
    assert learn([killed] * 20).max_num_seqs == 1
