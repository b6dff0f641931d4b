"""One shard's pods as its task deals with them: which one is there, which to send, what an end means.

No operator, no context: values, the store and the Kubernetes API.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from uuid6 import uuid7

from shardline.attempts import now, read_attempt, read_attempts, read_progress
from shardline.errors import WrongInput
from shardline.images import SETTING
from shardline.plan import timestamp
from shardline.reasons import PodOutcome
from shardline.runners.gpu.cloud import read_cloud
from shardline.runners.gpu.ends import PodEnd, close_attempt, is_closed, recorded_code
from shardline.runners.gpu.errand import ATTEMPT, Errand, work_labels
from shardline.runners.gpu.facts import PodFacts, read_facts
from shardline.runners.gpu.history import DEFAULT_SLOTS, learn
from shardline.runners.gpu.outcomes import Stop, classify, classify_refusal
from shardline.runners.gpu.pod import build_pod
from shardline.runners.gpu.settings import GpuSettings
from shardline.runners.retry import Decision, Outcome, Verdict, decide
from shardline.runners.shard import read_history

if TYPE_CHECKING:
    from shardline.plan import Plan
    from shardline.store import Store
    from shardline_airflow.pod_api import PodApi, PodRefused

log = logging.getLogger(__name__)

_LOG_LINES = 100


@dataclass
class ShardPods:
    """The pods of one shard in one generation."""

    store: Store
    plan: Plan
    shard: str
    generation: int
    settings: GpuSettings
    api: PodApi

    @property
    def is_done(self) -> bool:
        return self.store.exists(self.plan.layout.results(self.shard))

    @property
    def root(self) -> str:
        """The store as pods reach it."""
        return self.settings.root_of_pods(self.store.uri)

    def find(self) -> list[dict[str, Any]]:
        """All pods that were ever sent for this shard and are still there."""
        labels = work_labels(self.root, self.plan.job_id, self.shard, self.generation)
        return self.api.find(labels)

    def adopt(self, pods: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """The pod to wait for, of those that were sent; what was judged before is removed."""
        mine = None
        for pod in pods:
            if is_closed(self.store, self.plan, self.shard, attempt_of(pod)):
                self.remove(read_facts(pod))
            else:
                mine = pod
        return mine

    def make_pod(self) -> dict[str, Any]:
        """The next pod to send.

        Raises:
            WrongInput: the values file, or an engine argument, is wrong.
            NotAllowed: the job file names an accelerator that this deployment does not have.
        """
        records = read_attempts(self.store, self.plan.layout, self.shard, self.generation)
        errand = Errand(
            root=self.root,
            job_id=self.plan.job_id,
            image=self._image(),
            shard=self.shard,
            generation=self.generation,
            attempt=str(uuid7()),
            number=len(records),
        )
        block = self.plan.job_file.gpu
        assert block is not None
        slots = block.engine_args.get("max_num_seqs", DEFAULT_SLOTS)
        cloud = read_cloud(self.settings.clouds_file, self.settings.cloud)
        return build_pod(errand, block, self.settings, cloud, learn(records, slots), os.environ)

    def _image(self) -> str:
        image = self.plan.worker_image
        if image is None:
            raise WrongInput(
                f"job {self.plan.job_id}: no worker image: set {SETTING} and plan again"
            )
        return image

    def close_refused(self, pod: dict[str, Any], refusal: PodRefused) -> PodOutcome:
        """The API made no pod: that is an attempt, too."""
        outcome = classify_refusal(refusal.status, refusal.reason, refusal.is_over_quota)
        self._close(PodEnd(attempt_of(pod), outcome, now(), detail=str(refusal)))
        return outcome

    def close(self, facts: PodFacts | None, stop: Stop, attempt: str) -> PodOutcome:
        """Judge an end, write it down, and let the pod go."""
        code = recorded_code(self.store, self.plan, self.shard, attempt)
        outcome = classify(facts, stop, code)
        if outcome is PodOutcome.DONE and not self.is_done:
            log.error("%s: the worker ended well, and there are no results", self.shard)
            outcome = PodOutcome.UNKNOWN
        started = (facts and (facts.started_at or facts.created_at)) or datetime.now(UTC)
        end = PodEnd(
            attempt=attempt,
            outcome=outcome,
            started_at=timestamp(started),
            pod_uid=facts.uid if facts else None,
            node=facts.node if facts else None,
            exit_code=facts.exit_code if facts else None,
            detail=describe(facts),
        )
        self._close(end)
        if facts is not None:
            self.remove(facts, at_once=facts.has_ended or stop is Stop.LOST)
        return outcome

    def heard_at(self, attempt: str) -> datetime | None:
        """When the worker last wrote to the store."""
        said = read_progress(self.store, self.plan.layout.progress(self.shard, attempt))
        return None if said is None else datetime.fromisoformat(said.at)

    def decide(self, outcome: PodOutcome, before: int, facts: PodFacts | None = None) -> Decision:
        """What the last attempt means for the shard; the first `before` do not count."""
        if self.is_done:  # however this pod ended
            return Decision(Verdict.DONE, "results are committed")
        history = read_history(self.store, self.plan, self.shard, self.generation)[before:]
        # the record of a pod on a lost node is left as it is
        last = replace(history[-1], pod=outcome) if history else Outcome(None, False, pod=outcome)
        detail = describe(facts)
        if detail and last.message != detail:
            last = replace(last, message="; ".join(filter(None, [last.message, detail])))
        return decide([*history[:-1], last], random.random())  # noqa: S311

    def remove(self, facts: PodFacts, *, at_once: bool | None = None) -> None:
        """Delete a pod and take its finalizer off."""
        at_once = facts.has_ended if at_once is None else at_once
        self.api.remove(facts.name, facts.uid, at_once=at_once)

    def show_log(self, facts: PodFacts | None, attempt: str) -> None:
        """The end of the worker's log: from the store, else from its node, if that still answers."""
        path = self.plan.layout.log(self.shard, attempt)
        kept = (self.store.read_or_none(path) or b"").decode(errors="replace").splitlines()
        record = read_attempt(self.store, self.plan.layout, self.shard, attempt)
        has_said_all = bool(kept) and record is not None and record.end is not None
        if not has_said_all and facts is not None and facts.has_ended:
            kept = self.api.tail(facts.name, _LOG_LINES) or kept
        for line in kept[-_LOG_LINES:]:
            log.info("%s", line)
        if has_said_all:
            log.info("the whole log: %s", self.store.uri_of(path))

    def _close(self, end: PodEnd) -> None:
        close_attempt(self.store, self.plan, self.shard, self.generation, end)


def attempt_of(pod: dict[str, Any]) -> str:
    """The attempt that a pod was sent for."""
    return str(pod["metadata"]["labels"][ATTEMPT])


def describe(facts: PodFacts | None) -> str:
    """What Kubernetes says of a pod, in one line."""
    if facts is None:
        return ""
    said = [
        f"exit code {facts.exit_code}" if facts.exit_code is not None else "",
        facts.terminated_reason if facts.terminated_reason not in ("Error", "Completed") else "",
        facts.waiting_reason,
        facts.pod_reason,
        facts.disruption or "",
    ]
    where = f"pod {facts.name} on {facts.node}" if facts.node else f"pod {facts.name}"
    return ", ".join([where, *filter(None, said)])
