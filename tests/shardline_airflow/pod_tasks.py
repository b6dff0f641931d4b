"""A shard's task on its own: run as the task runner and the triggerer would run it, without either."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred

from shardline.attempts import read_attempts
from shardline.plan import Plan
from shardline.rows import Attempt
from shardline.runners.gpu.errand import ATTEMPT
from shardline.shards.manifest import read_shards
from shardline.store import Store, open_store
from shardline_airflow.gpu_operator import InferShardOnGpu
from shardline_airflow.infer_operator import SHARD_RETRIES
from shardline_airflow.pod_trigger import ShardPodTrigger
from shardline_airflow.retries import TaskEnded
from tests.factories import make_rows
from tests.kubernetes_api import FakeKubernetes, FakePod
from tests.results.answers import answer_shard, small_job


class Kept(dict[str, Any]):
    """The task's state, which outlives its tries."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


@dataclass
class Ti:
    """What the operator asks of a task instance."""

    dag_id: str = "infer_on_gpu"
    task_id: str = "infer_shard"
    run_id: str = "wave"
    map_index: int = 0
    try_number: int = 1
    max_tries: int = SHARD_RETRIES["retries"]
    start_date: datetime = field(default_factory=lambda: datetime.now(UTC))


class Refusing(Store):
    """The store of a folder whose keys are wrong while `is_wrong`."""

    is_wrong = True

    def __init__(self, uri: str) -> None:
        plain = open_store(uri)
        super().__init__(plain.uri, plain._objects, plain.folder)

    def _do_read(self, path: str) -> bytes:
        if Refusing.is_wrong:
            raise PermissionError("no such key")
        return super()._do_read(path)


@dataclass
class ShardTask:
    """One shard's task, with the store that its worker would write to."""

    store: Store
    plan: Plan
    cluster: FakeKubernetes | None = None
    ti: Ti = field(default_factory=Ti)
    kept: Kept = field(default_factory=Kept)
    number: int = 0

    @property
    def shard(self) -> str:
        return read_shards(self.store, self.plan)[self.number].shard

    def operator(self) -> InferShardOnGpu:
        with DAG("infer_on_gpu", schedule=None):
            return InferShardOnGpu(task_id="infer_shard", number=self.number)

    def context(self, operator: InferShardOnGpu) -> dict[str, Any]:
        return {
            "ti": self.ti,
            "run_id": self.ti.run_id,
            "dag": operator.dag,
            "task": operator,
            "task_state_store": self.kept,
            "params": {"job_id": self.plan.job_id, "generation": 1},
        }

    def start(self) -> TaskDeferred:
        """To its deferral: nothing is run again, nothing is waited for."""
        operator = self.operator()
        with pytest.raises(TaskDeferred) as deferred:
            operator.execute(self.context(operator))
        return deferred.value

    def watch(self, deferral: TaskDeferred) -> dict[str, Any]:
        """The trigger's event, from a trigger as the triggerer makes it anew."""
        path, arguments = deferral.trigger.serialize()
        assert path == "shardline_airflow.pod_trigger.ShardPodTrigger"
        event: dict[str, Any] = asyncio.run(_first(ShardPodTrigger(**arguments)))
        return event

    def go_on(self, event: dict[str, Any]) -> None:
        """What the task does with an event, as a new process does it."""
        operator = self.operator()
        operator.trigger_reentry(self.context(operator), event=event)

    def resume(self, deferral: TaskDeferred) -> None:
        """Wait in the trigger, and go on."""
        self.go_on(self.watch(deferral))

    def run(self) -> TaskEnded | None:
        """One try; how it ended, None for a success."""
        self.ti.try_number += 1
        operator = self.operator()

        def go_on() -> None:
            operator.execute(self.context(operator))

        while True:
            try:
                go_on()
            except TaskDeferred as deferral:  # a trigger that fired for nothing is waited for again
                go_on = functools.partial(self.resume, deferral)
            except TaskEnded as ended:
                return ended
            else:
                return None

    def answer(self, pod: FakePod) -> None:
        """A fate: the worker does its work and ends well."""
        answer_shard(self.store, self.plan, self.shard)
        pod.run()
        pod.end(0)

    def attempts(self) -> list[Attempt]:
        return read_attempts(self.store, self.plan.layout, self.shard)

    def attempt_of(self, pod: FakePod) -> str:
        return pod.labels[ATTEMPT]


async def _first(trigger: Any) -> Any:
    events = trigger.run()
    try:
        return (await anext(events)).payload
    finally:
        await events.aclose()


def gpu_job(
    folder: Path,
    rows: int = 4,
    *,
    store: Store | None = None,
    shard: int = 50_000,
    model: str = "stub",
    **args: Any,
) -> tuple[Store, Plan]:
    """A job in pods, `shard` rows each, on vLLM if it names a model; `args` are the engine's."""
    name = "stub" if model == "stub" else "vllm"
    engine = {"model": model, "engine": name, "engine_args": args}
    return small_job(
        folder,
        make_rows(rows),
        store=store,
        run_on="gpu",
        gpu=engine,
        shards__max_requests=shard,
    )
