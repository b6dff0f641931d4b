"""Pods through the Kubernetes API, for a task: each call ends, and its error says what it means.

The API may be away for a minute (an upgrade of a managed control plane), may lose a reply after doing
what it was asked, may ask to come later. Calls are repeated for as long; what is asked for twice is
named so that it is done once.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import orjson
from kubernetes.client import ApiException, CoreV1Api
from urllib3.exceptions import HTTPError

from shardline.errors import TransientError
from shardline.reasons import PodOutcome
from shardline.runners.gpu.facts import CONTAINER
from shardline.runners.gpu.quota import is_used_up

log = logging.getLogger(__name__)

T = TypeVar("T")
PATIENCE_S = 150.0
"""How long a call is repeated: longer than a control plane's restart."""
_TIMEOUT_S = (5, 30)
_LOG_TIMEOUT_S = (5, 10)
_LOG_BYTES = 1_000_000
_DELAYS_S = (1.0, 2.0, 4.0, 8.0, 15.0)
_REFUSES = frozenset({401, 403})
"""Patience too: a control plane that starts knows nobody's rights for some seconds."""
_LATER = _REFUSES | {408, 409, 429, 500, 502, 503, 504}
_CREATED_AT_MOST = 4
_REFUSED_PAUSE_S = 2.0


class ControlPlaneDown(TransientError):
    """The Kubernetes API did not answer for a while, or kept asking to come later."""

    outcome = PodOutcome.CONTROL_PLANE


class ControlPlaneRefuses(ControlPlaneDown):
    """The Kubernetes API kept saying that we may not ask this: rights, or an account."""

    outcome = PodOutcome.REFUSED


class PodRefused(Exception):
    """The API answered that it makes no such pod."""

    def __init__(self, status: int, reason: str, message: str, is_over_quota: bool) -> None:
        self.status, self.reason, self.is_over_quota = status, reason, is_over_quota
        super().__init__(message)


class PodApi:
    """The few calls a task makes. A pod is the API's own JSON."""

    def __init__(
        self, core: CoreV1Api, namespace: str, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._core, self.namespace, self._pause = core, namespace, pause

    def now(self) -> datetime:
        """The API's clock at its last answer: what it writes into pods is compared with it."""
        answer = getattr(self._core.api_client, "last_response", None)
        answer = getattr(answer, "urllib3_response", answer)
        return moment_of({} if answer is None else answer.headers)

    def find(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """All pods with these labels, in whatever state, the newest last."""
        selector = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
        found = self._call(
            lambda: self._core.list_namespaced_pod(
                self.namespace, label_selector=selector, _request_timeout=_TIMEOUT_S
            )
        )
        pods = [self._plain(pod) for pod in found.items]
        return sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))

    def read(self, name: str) -> dict[str, Any] | None:
        """One pod; None when there is none of this name."""
        try:
            pod = self._call(
                lambda: self._core.read_namespaced_pod(
                    name, self.namespace, _request_timeout=_TIMEOUT_S
                )
            )
        except ApiException as error:
            if error.status == 404:
                return None
            raise
        return self._plain(pod)

    def create(self, pod: Any) -> dict[str, Any]:
        """Make the pod, or find the one of its name: a lost reply is no second pod.

        Raises:
            PodRefused: the API says no. Where it is not for a full quota it has said so several times:
                room may come between the refusal and the look at the quota.
            ControlPlaneDown: it says nothing.
        """
        for _ in range(_CREATED_AT_MOST - 1):
            try:
                return self._create(pod)
            except PodRefused as refusal:
                if refusal.status != 403 or refusal.is_over_quota:
                    raise
            self._pause(_REFUSED_PAUSE_S)
        return self._create(pod)

    def _create(self, pod: Any) -> dict[str, Any]:
        try:
            made = self._call(
                lambda: self._core.create_namespaced_pod(
                    self.namespace, pod, _request_timeout=_TIMEOUT_S
                ),
                later=_LATER - _REFUSES,
            )
        except ApiException as error:
            if _reason(error) != "AlreadyExists":
                full = error.status == 403 and self._is_quota_used_up(pod)
                raise PodRefused(
                    error.status or 0, _reason(error), _message(error), full
                ) from error
            found = self.read(pod.metadata.name)
            if found is None:  # it went between the two calls
                raise ControlPlaneDown(
                    f"pod {pod.metadata.name}: was there, and is gone"
                ) from error
            return found
        return self._plain(made)

    def remove(self, name: str, uid: str, *, at_once: bool) -> None:
        """Let the pod go and delete it; it may be gone already, or another have its name.

        Args:
            at_once: without a grace period, for one that has ended or whose node is lost. Else its
                worker drains first.
        """
        delete, free = removal(uid, at_once=at_once)
        options = {"_request_timeout": _TIMEOUT_S}
        for call in (
            lambda: self._core.delete_namespaced_pod(name, self.namespace, body=delete, **options),
            lambda: self._core.patch_namespaced_pod(name, self.namespace, free, **options),
        ):
            self._call(functools.partial(self._unless_gone, call, name, uid))

    def _unless_gone(self, call: Callable[[], object], name: str, uid: str) -> None:
        try:
            call()
        except ApiException as error:
            if error.status == 404:
                return
            if error.status in (409, 422):  # what is there has changed, or is another pod
                found = self.read(name)
                if found is None or found["metadata"]["uid"] != uid:
                    return
            raise

    def tail(self, name: str, lines: int) -> list[str]:
        """The end of the container's log, if its node still gives it."""
        try:
            # undecoded: the client makes "b'...'" of a log that it decodes
            answer = self._core.read_namespaced_pod_log(
                name,
                self.namespace,
                container=CONTAINER,
                tail_lines=lines,
                limit_bytes=_LOG_BYTES,
                _request_timeout=_LOG_TIMEOUT_S,
                _preload_content=False,
            )
            text: str = answer.data.decode(errors="replace")
        except (ApiException, HTTPError) as error:
            log.info("pod %s: its node gives no log (%s)", name, type(error).__name__)
            return []
        return text.splitlines()

    def _is_quota_used_up(self, pod: Any) -> bool:
        try:
            found = self._call(
                lambda: self._core.list_namespaced_resource_quota(
                    self.namespace, _request_timeout=_TIMEOUT_S
                ),
                later=_LATER - _REFUSES,
            )
        except ApiException as error:
            log.warning("whether a quota is used up is not told: no right to list resourcequotas")
            if error.status not in _REFUSES:
                raise
            return False
        return is_used_up(map(self._plain, found.items), self._plain(pod))

    def _call(self, call: Callable[[], T], later: Collection[int] = _LATER) -> T:
        """Repeat a call while the API cannot answer. Raises ControlPlaneDown, or its clear answer.

        Args:
            later: statuses of answers that may be others soon.
        """
        waited, n = 0.0, 0
        while True:
            try:
                return call()
            except ApiException as error:
                if error.status not in later or _reason(error) == "AlreadyExists":
                    raise
                last = f"{error.status} {error.reason}"
                if waited >= PATIENCE_S and error.status in _REFUSES:
                    raise ControlPlaneRefuses(f"{last}: {_message(error)}") from error
            except HTTPError as error:  # also 429 and 503: the client waits as long as they ask
                last = type(error).__name__
            if waited >= PATIENCE_S:
                raise ControlPlaneDown(f"the Kubernetes API did not answer: {last}")
            delay = _DELAYS_S[min(n, len(_DELAYS_S) - 1)]
            log.warning("the Kubernetes API did not answer (%s), again in %.0f s", last, delay)
            self._pause(delay)
            waited, n = waited + delay, n + 1

    def _plain(self, pod: Any) -> dict[str, Any]:
        plain: dict[str, Any] = self._core.api_client.sanitize_for_serialization(pod)
        return plain


def moment_of(headers: Mapping[str, str]) -> datetime:
    """When an answer of the API was made; by our own clock where it does not say."""
    try:
        return parsedate_to_datetime(headers.get("Date", ""))
    except ValueError:
        return datetime.now(UTC)


def removal(uid: str, *, at_once: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """The bodies of the two calls that let a pod go: DELETE and PATCH. Neither touches another pod."""
    grace = {"gracePeriodSeconds": 0} if at_once else {}
    return {"preconditions": {"uid": uid}, **grace}, {"metadata": {"uid": uid, "finalizers": None}}


def _status(error: ApiException) -> dict[str, Any]:
    """The Status object in an answer."""
    try:
        found = orjson.loads(error.body or b"{}")
    except orjson.JSONDecodeError:  # a proxy's page
        return {}
    return found if isinstance(found, dict) else {}


def _reason(error: ApiException) -> str:
    return str(_status(error).get("reason") or "")


def _message(error: ApiException) -> str:
    return str(_status(error).get("message") or error.reason or "no reason given")
