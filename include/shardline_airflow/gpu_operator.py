"""Run one shard as one task in a Kubernetes pod, and turn the pod's end into the task's.

How it works: the task finds its pod, or sends one, and defers until `ShardPodTrigger` says that there
is nothing to wait for. What Kubernetes knows of the end becomes a word of a closed list
(runners.gpu.outcomes), the word goes into the attempt's record, and the records decide what happens
to the shard (runners.retry), as for every runner.

A pod is sent once: its name comes from the shard and the number of attempts before, so whoever sends it
again (a lost reply, a second try of the task) finds the first. It carries a finalizer until its end was
read. So nothing hangs on Airflow's memory: a task that starts anew finds its pod by labels and goes on.
A pod is never touched by its name alone: a name may be used again, its uid is not.

What it does not do: follow the pod's log. The worker keeps it in the store, and the end of it is shown
when the pod has ended; meanwhile the trigger tells how far it is.

Known limitation: a task that is killed while it sends a pod (a moment) may leave it; `reap_pods` at
the end of the wave, or the next try of the task, finds it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk.exceptions import AirflowNotFoundException
from kubernetes.client import CoreV1Api
from kubernetes.config import ConfigException

from shardline.errors import Cancelled, WrongInput
from shardline.runners.generations import is_cancelled
from shardline.runners.gpu.facts import CONTAINER, PodFacts, read_facts
from shardline.runners.gpu.outcomes import Stop, look
from shardline.runners.gpu.settings import read_gpu_settings
from shardline_airflow.infer_operator import (
    attempts_before,
    end_task,
    end_without_attempt,
    name_unread,
    say_done_before,
    waits_for_keys,
)
from shardline_airflow.pod_api import ControlPlaneDown, PodApi, PodRefused
from shardline_airflow.pod_trigger import ShardPodTrigger
from shardline_airflow.pod_work import ShardPods, attempt_of
from shardline_airflow.retries import TryAgain
from shardline_airflow.runs import name_map_index
from shardline_airflow.stages import gives_up, open_job

log = logging.getLogger(__name__)


def comes_back(run: Callable[..., None]) -> Callable[..., None]:
    """An API that is away costs the shard nothing: the pod, if there is one, is found again."""

    @functools.wraps(run)
    def guarded(self: InferShardOnGpu, context: Any, **kwargs: Any) -> None:
        try:
            run(self, context, **kwargs)
        except ControlPlaneDown as down:
            end_without_attempt(self.shard, down.outcome, str(down), context)

    return guarded


class InferShardOnGpu(KubernetesPodOperator):
    """Run shard `number` of the job that the dag run's params name, in a pod."""

    # The pod is described when it is sent. To render its parent's twenty fields, which are empty, and to
    # keep them in the database took each of a shard's two tasks a tenth of its CPU.
    template_fields: Sequence[str] = ()
    template_fields_renderers: ClassVar[dict[str, str]] = {}

    def __init__(self, *, number: int, **kwargs: Any) -> None:
        super().__init__(
            deferrable=True,
            get_logs=False,
            do_xcom_push=False,
            log_events_on_startup=False,
            random_name_suffix=False,
            termination_message_policy="FallbackToLogsOnError",
            base_container_name=CONTAINER,
            **kwargs,
        )
        self.number, self.shard = number, name_unread(number)
        self._sent: tuple[PodApi, PodFacts] | None = None
        self._is_killed = False

    @gives_up
    @waits_for_keys
    @comes_back
    def execute(self, context: Any) -> None:
        """Find the pod or send one, and wait for it. Nothing is run when the results exist."""
        pods = self._open(context)
        sent = pods.find()
        if pods.is_done:
            for pod in sent:
                pods.remove(read_facts(pod))
            log.info("%s", say_done_before(pods.store, pods.plan, pods.shard))
            return
        adopted = pods.adopt(sent)
        if adopted is not None:
            log.info("%s: goes on with pod %s", pods.shard, adopted["metadata"]["name"])
        pod = adopted or self._send(context, pods)
        facts = read_facts(pod)
        self._sent = (pods.api, facts)
        now = pods.api.now()
        self._go_on(pods, pod, look(facts, now, now, self._patience))

    @gives_up
    @waits_for_keys
    @comes_back
    def trigger_reentry(self, context: Any, event: dict[str, Any]) -> None:
        """Judge the pod's end; wait on if it has not ended after all."""
        pods = self._open(context)
        pod = pods.api.read(event["name"])
        if pod is None or attempt_of(pod) != event["attempt"]:
            facts = msgspec.convert(event["facts"], PodFacts | None)
            self._end(pods, facts, Stop.GONE, event["attempt"])
            return
        facts, now = read_facts(pod), pods.api.now()
        stop = look(facts, now, now, self._patience)
        if stop is None and event["stop"] == Stop.CANCELLED and not facts.is_running:
            stop = Stop.CANCELLED
        if stop is None and event["stop"] == Stop.LOST:  # it may have come back meanwhile
            stop = look(facts, now, pods.heard_at(event["attempt"]), self._patience)
        self._go_on(pods, pod, stop)

    def on_kill(self) -> None:
        """Delete the pod: the task was ended while it ran. Rows are safe, the worker drains."""
        self._is_killed = True
        if self._sent is not None:
            api, pod = self._sent
            log.info("told to stop: pod %s is deleted, its worker drains", pod.name)
            api.remove(pod.name, pod.uid, at_once=False)

    def _open(self, context: Any) -> ShardPods:
        """Everything that is read at each start of the task: it remembers nothing."""
        from shardline.shards.manifest import read_shard_name

        store, plan = open_job(context["params"]["job_id"])
        self.shard = read_shard_name(store, plan, self.number)
        context["shard"] = self.shard
        name_map_index(context, self.shard)
        settings = read_gpu_settings()
        self.kubernetes_conn_id, self.namespace = settings.conn_id, settings.namespace
        self._patience = settings.patience
        api = PodApi(self._reach_cluster(), settings.namespace)
        generation = int(context["params"]["generation"])
        pods = ShardPods(store, plan, self.shard, generation, settings, api)
        self._before = attempts_before(store, plan, self.shard, generation, context)
        return pods

    def _reach_cluster(self) -> CoreV1Api:
        try:
            return self.client
        except (ConfigException, AirflowNotFoundException) as error:
            raise WrongInput(
                f"SHARDLINE_GPU_CONN_ID: {self.kubernetes_conn_id} leads to no cluster ({error})"
            ) from error

    def _send(self, context: Any, pods: ShardPods) -> dict[str, Any]:
        self._stop_if_killed(pods)
        if is_cancelled(pods.store, pods.plan.job_id, pods.generation):
            raise Cancelled(f"job {pods.plan.job_id}: generation {pods.generation} was cancelled")
        described = pods.make_pod()
        self.pod_template_dict = described
        try:
            pod = pods.api.create(self.build_pod_request_obj(context))
        except PodRefused as refusal:
            log.warning("%s: %s", pods.shard, refusal)
            outcome = pods.close_refused(described, refusal)
            end_task(pods.shard, pods.decide(outcome, self._before))
            raise
        log.info("%s: sent pod %s", pods.shard, pod["metadata"]["name"])
        return pod

    def _stop_if_killed(self, pods: ShardPods) -> None:
        """Airflow lets a task that it ends run on for five seconds: it sends no pod and leaves none."""
        if self._is_killed:
            self.on_kill()
            raise TryAgain(f"{pods.shard}: told to stop", 0.0)

    def _go_on(self, pods: ShardPods, pod: dict[str, Any], stop: Stop | None) -> None:
        if stop is None:
            self._wait(pods, pod)
        else:
            self._end(pods, read_facts(pod), stop, attempt_of(pod))

    def _wait(self, pods: ShardPods, pod: dict[str, Any]) -> None:
        self._sent = (pods.api, read_facts(pod))
        self._stop_if_killed(pods)
        attempt = attempt_of(pod)
        trigger = ShardPodTrigger(
            pod_name=pod["metadata"]["name"],
            pod_namespace=pods.api.namespace,
            trigger_start_time=datetime.now(UTC),
            base_container_name=CONTAINER,
            kubernetes_conn_id=self.kubernetes_conn_id,
            poll_interval=pods.settings.poll_s,
            uid=pod["metadata"]["uid"],
            progress=pods.plan.layout.progress(pods.shard, attempt),
            cancel=pods.plan.layout.cancel(pods.generation),
            attempt=attempt,
            patience=asdict(self._patience),
        )
        self.defer(trigger=trigger, method_name="trigger_reentry")

    def _end(self, pods: ShardPods, facts: PodFacts | None, stop: Stop, attempt: str) -> None:
        pods.show_log(facts, attempt)
        outcome = pods.close(facts, stop, attempt)
        end_task(pods.shard, pods.decide(outcome, self._before, facts))
