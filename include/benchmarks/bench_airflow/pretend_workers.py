"""Workers of pods that only pretend to run: what they would write to the store, and when they end.

kwok plays a pod without a container. So that its task finds what a worker leaves, this writes it: the
attempt's record and the progress object when the pod starts; log, results and the record's end just
before it ends. Then the pod gets the annotation by which kwok ends it (see tests/cluster/kwok).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import orjson
from kubernetes.client import CoreV1Api

from benchmarks.bench_airflow.pod_lives import PodLife
from shardline.attempts import new_attempt, now, read_attempt, write_attempt
from shardline.plan import Plan
from shardline.reasons import AttemptEnd, ExitCode
from shardline.rows import Progress
from shardline.runners.gpu.errand import ATTEMPT, SHARD
from shardline.runners.gpu.facts import PodFacts, read_facts
from shardline.store import Store

RUN_TIME = "fake/run-time"
_WATCH_S = 60
_LOG = b"".join(b"segment %d committed, 5000 rows\n" % n for n in range(60))


@dataclass
class PretendWorkers:
    """The pods of one namespace, and the workers of those that belong to a job."""

    core: CoreV1Api
    namespace: str
    job: tuple[Store, Plan] | None = None
    lives: dict[str, PodLife] = field(default_factory=dict)
    last_pod: dict[str, Any] = field(default_factory=dict)
    """The latest pod as the API has it."""
    _error: BaseException | None = None
    _is_stopped: bool = False

    def start(self) -> None:
        """Watch from now on, in a thread that ends with this process."""
        threading.Thread(target=self._watch, name="pretend-workers", daemon=True).start()

    def stop(self) -> None:
        self._is_stopped = True

    def check(self) -> None:
        """Raise what has ended the watch."""
        if self._error is not None:
            raise self._error

    @property
    def running(self) -> list[PodLife]:
        """Pods that run and were not told to end, in the order of their starts."""
        return [
            life
            for life in list(self.lives.values())
            if life.is_running and not life.is_told_to_end
        ]

    @property
    def unjudged(self) -> int:
        """Pods that were told to end and are still there: their tasks have not let go of them."""
        return sum(life.is_told_to_end and not life.is_gone for life in list(self.lives.values()))

    def end(self, lives: Iterable[PodLife]) -> None:
        """Let the workers of these pods have finished."""
        for life in lives:
            life.is_told_to_end = True
            if self.job is not None:
                self._finish(*self.job, life)
            assert life.started_at
            age_s = int((datetime.now(UTC) - life.started_at).total_seconds())
            note = {"metadata": {"annotations": {RUN_TIME: str(age_s)}}}
            self.core.patch_namespaced_pod(life.name, self.namespace, note)

    def _watch(self) -> None:
        version = ""
        try:
            while not self._is_stopped:
                version = self._follow(version)
        except BaseException as error:  # noqa: BLE001  whatever it is, `check` raises it where it is seen
            self._error = error

    def _follow(self, version: str) -> str:
        """See what happens for a minute; returns from where to go on, "" for the beginning."""
        options = {"resource_version": version} if version else {}
        answer = self.core.list_namespaced_pod(
            self.namespace,
            watch=True,
            allow_watch_bookmarks=True,
            timeout_seconds=_WATCH_S,
            _preload_content=False,
            **options,
        )
        try:
            for line in answer:
                event = orjson.loads(line)
                if event["type"] == "ERROR":  # too old a version: begin anew
                    return ""
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self._see(event["type"], event["object"])
        finally:
            answer.close()
        return version

    def _see(self, kind: str, pod: dict[str, Any]) -> None:
        facts = read_facts(pod)
        labels = pod["metadata"].get("labels") or {}
        found = self.lives.get(facts.uid)
        if found is None:
            found = PodLife(facts.name, labels.get(SHARD, ""), labels.get(ATTEMPT, ""))
            self.lives[facts.uid] = found
            self.last_pod = pod
        if found.started_at is None and facts.started_at is not None:
            if self.job is not None:
                self._begin(*self.job, found, facts)
            found.started_at = facts.started_at
        if found.ended_at is None and facts.has_ended:
            found.ended_at = _ended_at(pod)
        found.is_gone = kind == "DELETED"

    def _begin(self, store: Store, plan: Plan, life: PodLife, facts: PodFacts) -> None:
        record = new_attempt(life.attempt, life.shard, 1, "pretend", 1, facts.uid, facts.node)
        write_attempt(store, plan.layout, record)
        progress = Progress(life.shard, life.attempt, 1, now(), "running", 1, 0, 0, 0.0, 0.0, 0.0)
        store.write(plan.layout.progress(life.shard, life.attempt), msgspec.json.encode(progress))

    def _finish(self, store: Store, plan: Plan, life: PodLife) -> None:
        record = read_attempt(store, plan.layout, life.shard, life.attempt)
        assert record, "it was written when the pod started"
        store.write(plan.layout.log(life.shard, life.attempt), _LOG)
        store.put_once(plan.layout.results(life.shard), b"")
        record.end, record.exit_code, record.ended_at = AttemptEnd.DONE, int(ExitCode.DONE), now()
        write_attempt(store, plan.layout, record)


def _ended_at(pod: dict[str, Any]) -> datetime | None:
    states = [status["state"] for status in pod["status"].get("containerStatuses") or ()]
    ended = (states[0].get("terminated") or {}).get("finishedAt") if states else None
    return datetime.fromisoformat(ended) if ended else None
