"""Pods as a test sees them: started, watched from event to event, evicted, and gone at the end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from kubernetes import client, watch

PodState = client.V1Pod
numbers = itertools.count()


def make_namespace(api: client.CoreV1Api, prefix: str) -> str:
    """A new namespace that is ready to take pods; its name."""
    wanted = client.V1Namespace(metadata=client.V1ObjectMeta(generate_name=prefix))
    name = str(api.create_namespace(wanted).metadata.name)
    accounts = watch.Watch().stream(
        api.list_namespaced_service_account,
        name,
        field_selector="metadata.name=default",
        timeout_seconds=180,
    )
    next(accounts)  # before it is there, pods are refused
    accounts.close()
    return name


def make_secret(
    api: client.CoreV1Api, namespace: str, values: Mapping[str, str], name: str = "store"
) -> str:
    """A secret, as pods without an identity of their own get the store's keys; its name."""
    metadata = client.V1ObjectMeta(name=name)
    api.create_namespaced_secret(
        namespace, client.V1Secret(metadata=metadata, string_data=dict(values))
    )
    return name


@dataclass
class Pod:
    """One pod. What is returned of it is what the API server last said."""

    api: client.CoreV1Api
    name: str
    namespace: str
    _evicted_after: str | None = None

    def wait(self, what: str, is_so: Callable[[PodState], bool], timeout_s: int = 180) -> PodState:
        """Return the first state of which `is_so` holds; the last moment of a pod is seen too.

        Raises:
            AssertionError: it did not come to that; with the last state.
        """
        state = None
        # an evicted pod may be gone before anybody looks: what happened since is told again
        since = {} if self._evicted_after is None else {"resource_version": self._evicted_after}
        for kind, state in self._events(timeout_s, **since):
            if is_so(state):
                return state
            if kind == "DELETED":
                break
        raise AssertionError(f"{self.name}: not {what}: {state and state.status}")

    def wait_running(self, timeout_s: int = 180) -> PodState:
        return self.wait("running", lambda state: state.status.phase == "Running", timeout_s)

    def wait_ended(self, timeout_s: int = 240) -> PodState:
        return self.wait("ended", is_ended, timeout_s)

    def wait_exit(self, code: int, timeout_s: int = 240) -> PodState:
        """Wait for the end, which must be with this exit code; else its log is in the message."""
        state = self.wait_ended(timeout_s)
        if exit_code(state) != code:
            log = "\n".join(list(self.log_lines())[-30:])
            raise AssertionError(f"{self.name}: exit {exit_code(state)}, not {code}:\n{log}")
        return state

    def wait_gone(self, timeout_s: int = 180) -> None:
        found = self.api.list_namespaced_pod(self.namespace, field_selector=self._selector)
        if not found.items:
            return
        for kind, _ in self._events(timeout_s, resource_version=found.metadata.resource_version):
            if kind == "DELETED":
                return
        raise AssertionError(f"{self.name}: still there after {timeout_s} s")

    def read_until(self, text: str) -> str:
        """Follow the log to the first line that holds `text`."""
        lines = []
        for line in self.log_lines(follow=True):
            lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"{self.name}: no line with {text!r} in:\n" + "\n".join(lines))

    def log_lines(self, follow: bool = False) -> Iterator[str]:
        response = self.api.read_namespaced_pod_log(
            self.name, self.namespace, follow=follow, _preload_content=False
        )
        try:
            for line in response:
                yield line.decode(errors="replace").rstrip("\n")
        finally:
            response.close()

    def evict(self) -> None:
        """As a drained node does: SIGTERM, and the grace period of the pod."""
        found = self.api.list_namespaced_pod(self.namespace, field_selector=self._selector)
        self._evicted_after = found.metadata.resource_version
        body = client.V1Eviction(metadata=client.V1ObjectMeta(name=self.name))
        self.api.create_namespaced_pod_eviction(self.name, self.namespace, body)

    def delete(self, grace_s: int | None = None) -> None:
        """As a person does; at once with a grace of 0, without a word to the container."""
        options = {} if grace_s is None else {"grace_period_seconds": grace_s}
        try:
            self.api.delete_namespaced_pod(self.name, self.namespace, **options)
        except client.ApiException as error:
            if error.status != 404:
                raise

    @property
    def _selector(self) -> str:
        return f"metadata.name={self.name}"

    def _events(self, timeout_s: int, **options: str) -> Iterator[tuple[str, PodState]]:
        stream = watch.Watch().stream(
            self.api.list_namespaced_pod,
            self.namespace,
            field_selector=self._selector,
            timeout_seconds=timeout_s,
            **options,
        )
        for event in stream:
            yield event["type"], event["object"]


@dataclass
class Pods:
    """The pods of one test."""

    api: client.CoreV1Api
    namespace: str
    started: list[Pod] = field(default_factory=list)

    def start(self, spec: client.V1PodSpec, annotations: Mapping[str, str] | None = None) -> Pod:
        name = f"test-{next(numbers)}"
        metadata = client.V1ObjectMeta(name=name, annotations=dict(annotations or {}))
        self.api.create_namespaced_pod(self.namespace, client.V1Pod(metadata=metadata, spec=spec))
        self.started.append(Pod(self.api, name, self.namespace))
        return self.started[-1]

    def remove(self) -> None:
        for pod in self.started:
            pod.delete(grace_s=0)
        for pod in self.started:
            pod.wait_gone()


def is_ended(state: PodState) -> bool:
    """True when the first container has ended."""
    statuses = state.status.container_statuses
    return bool(statuses) and statuses[0].state.terminated is not None


def end_of(state: PodState) -> client.V1ContainerStateTerminated:
    """How the first container ended: exit_code, reason, message."""
    assert is_ended(state), state.status
    return state.status.container_statuses[0].state.terminated


def exit_code(state: PodState) -> int:
    return int(end_of(state).exit_code)


def disruption(state: PodState) -> str | None:
    """Why the cluster took the pod away, if it did."""
    conditions = state.status.conditions or []
    return next((c.reason for c in conditions if c.type == "DisruptionTarget"), None)


def shell(image: str, script: str, limits: Mapping[str, str] | None = None) -> client.V1PodSpec:
    """A pod that runs a line of sh."""
    container = client.V1Container(
        name="base",
        image=image,
        image_pull_policy="IfNotPresent",
        command=["sh", "-c", script],
        resources=client.V1ResourceRequirements(limits=dict(limits or {})),
    )
    return client.V1PodSpec(
        containers=[container], restart_policy="Never", automount_service_account_token=False
    )
