"""Run one shard as one task: an attempt of the worker, and what its end means for the task.

The library decides (runners.retry): done, another attempt after a delay, or dead. A task that is
told to stop asks its worker to drain. Airflow kills the task five seconds later, so the worker is
soon asked again: then it commits what is finished and gives the rest up; a later try goes on there.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from shardline.errors import ObjectNotFound, StoreRefused
from shardline.reasons import DeadLetterReason, PodOutcome
from shardline.runners.retry import Decision, Outcome, Verdict, decide
from shardline.runners.shard import ShardOutcome, infer_shard, read_history
from shardline_airflow.retries import GivenUp, TryAgain, TypedRetryPolicy
from shardline_airflow.runs import name_map_index
from shardline_airflow.stages import gives_up, open_job

if TYPE_CHECKING:
    from shardline.plan import Plan
    from shardline.runners.local import LocalWorker
    from shardline.store import Store

log = logging.getLogger(__name__)

SHARD_RETRIES: dict[str, Any] = {
    # A ceiling only: runners.retry says "dead" long before, unless the shard gets on each time.
    "retries": 1_000,
    "retry_delay": timedelta(seconds=10),
    "retry_policy": TypedRetryPolicy(),
    "map_index_template": "{{ shard | default('number %d' % task.number) }}",
}
KILLED_AFTER_S = 5.0
"""Airflow's supervisor sends SIGKILL so long after SIGTERM."""
SECOND_SIGNAL_S = 2.0


def name_unread(number: int) -> str:
    """What a shard is called for as long as its name was not read from the store."""
    return f"shard number {number}"


def waits_for_keys(run: Callable[..., None]) -> Callable[..., None]:
    """A store that refuses Airflow's own keys is asked again by the next tries, ten minutes long.

    As for a worker whose keys are refused: somebody may be renewing them at this moment.
    """

    @functools.wraps(run)
    def guarded(self: Any, context: Any, **kwargs: Any) -> None:
        try:
            run(self, context, **kwargs)
        except ObjectNotFound:  # a StoreRefused that no keys bring back
            raise
        except StoreRefused as error:
            why = f"asked with Airflow's keys: {error}"
            end_without_attempt(self.shard, PodOutcome.STORE_REFUSED, why, context)

    return guarded


def end_without_attempt(shard: str, outcome: PodOutcome, why: str, context: Any) -> None:
    """End a try of the task that came to no attempt, so that no record counts it.

    Counted are such tries in a row, in the task's own state: it names the last of them, so that another
    one in between has nothing to forget, and asks Airflow for nothing.

    Raises:
        TryAgain, GivenUp: as `end_task`.
    """
    ti, kept = context["ti"], context["task_state_store"]
    key = f"{outcome}-in-a-row/{ti.max_tries}"
    n, last = kept.get(key) or (0, 0)
    n = n + 1 if ti.try_number - last <= 1 else 1
    kept.set(key, [n, ti.try_number])
    end_task(shard, decide([Outcome(None, False, why, outcome)] * n, random.random()))  # noqa: S311


class InferShard(BaseOperator):
    """Run shard `number` of the job that the dag run's params name, on this machine."""

    def __init__(self, *, number: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.number, self.shard = number, name_unread(number)
        self._worker: LocalWorker | None = None
        self._is_killed = False

    def execute(self, context: Any) -> None:
        self._run(context)

    @gives_up
    @waits_for_keys
    def _run(self, context: Any) -> None:
        from shardline.shards.manifest import read_shard_name

        params = context["params"]
        generation = params["generation"]
        store, plan = open_job(params["job_id"])
        self.shard = shard = read_shard_name(store, plan, self.number)
        context["shard"] = shard
        name_map_index(context, shard)
        before = attempts_before(store, plan, shard, generation, context)
        outcome = infer_shard(
            store,
            plan,
            shard,
            generation,
            jitter=random.random(),  # noqa: S311
            on_line=lambda line: log.info("%s", line),
            on_start=self._hold,
        )
        end_task(shard, decide_since(store, plan, outcome, generation, before))
        if not outcome.attempt:
            log.info("%s", say_done_before(store, plan, shard))

    def _hold(self, worker: LocalWorker) -> None:
        self._worker = worker
        if self._is_killed:  # the signal came between the start and this line
            worker.drain()

    def on_kill(self) -> None:
        """Let the worker commit what is finished, within the seconds that Airflow leaves."""
        self._is_killed = True
        if self._worker is None:
            return
        log.info("told to stop: draining the worker (pid %d)", self._worker.pid)
        self._worker.drain()
        time.sleep(SECOND_SIGNAL_S)
        self._worker.drain()


def attempts_before(store: Store, plan: Plan, shard: str, generation: int, context: Any) -> int:
    """How many attempts of this generation do not count, since the task was cleared after them.

    Clearing asks for fresh attempts, and raises `max_tries`. So the number is kept under it, where
    all tries of this mapped task find it.
    """
    ti = context["ti"]
    if ti.max_tries <= SHARD_RETRIES["retries"]:
        return 0
    kept, key = context["task_state_store"], f"attempts-before/{ti.max_tries}"
    found = kept.get(key)
    if found is None:
        found = len(read_history(store, plan, shard, generation))
        kept.set(key, found)
    return int(found)


def decide_since(
    store: Store, plan: Plan, outcome: ShardOutcome, generation: int, before: int
) -> Decision:
    """The decision on the attempts after the first `before`."""
    if outcome.is_done or not before:
        return outcome.decision
    history = read_history(store, plan, outcome.shard, generation)[before:]
    return decide(history, random.random()) if history else outcome.decision  # noqa: S311


def end_task(shard: str, decision: Decision) -> None:
    """End the task as its shard ended, with one line that says why.

    Raises:
        TryAgain: another attempt goes on from the committed segments.
        GivenUp: the shard is dead, or the job was cancelled.
    """
    line = f"{shard}: {decision.verdict.value}, {decision.reason}"
    if decision.verdict is Verdict.DONE:
        log.info("%s", line)
    elif decision.verdict is Verdict.RETRY:
        line = f"{line}; next attempt in {decision.delay_s:.0f} s"
        log.warning("%s", line)
        raise TryAgain(line, decision.delay_s)
    else:
        log.error("%s", line)
        raise GivenUp(line)


def say_done_before(store: Store, plan: Plan, shard: str) -> str:
    """Why there was nothing to do; a sealed shard comes back by replay only (PROTOCOL 21)."""
    from shardline.errors import JobNotReady
    from shardline.results.settle import read_settlement

    try:
        settlement = read_settlement(store, plan)
    except JobNotReady:
        return f"{shard}: it has results, nothing was run"
    if shard in {*settlement.dead_shards, *settlement.not_run_shards}:
        is_dead = shard in settlement.dead_shards
        reason = DeadLetterReason.SHARD_DEAD if is_dead else DeadLetterReason.NOT_RUN
        return (
            f"{shard}: sealed, nothing was run; its rows without a result come back with "
            f"`shardline replay {plan.whole_id} --reason {reason.value}`"
        )
    return f"{shard}: it has results, nothing was run"
