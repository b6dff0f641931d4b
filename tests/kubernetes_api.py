"""The pods of a Kubernetes API on a port of this machine: a double with scripted fates and faults.

For what a real cluster cannot be made to do on demand: lose a reply, answer 500 for a minute, let a pod
vanish between two calls. It serves objects and runs nothing, so it proves nothing of a kubelet.
"""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

from aiohttp import web

LOST_REPLY = 1
"""A fault that does what it was asked and drops the reply."""
DROPPED = 0
"""A fault that drops the connection."""


@dataclass
class Fault:
    """The next `n` calls of this kind answer `code`."""

    code: int
    n: int
    method: str
    path: str


@dataclass
class FakePod:
    """One pod; its fate sets what becomes of it."""

    object: dict[str, Any]
    api: FakeKubernetes
    sent: dict[str, Any] = field(init=False)
    """As it was when it was created."""

    is_fated: bool = False

    def __post_init__(self) -> None:
        self.sent = copy.deepcopy(self.object)

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.object["metadata"]["uid"])

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.object["metadata"]["labels"])

    @property
    def env(self) -> dict[str, str]:
        container = self.object["spec"]["containers"][0]
        return {e["name"]: e["value"] for e in container["env"] if "value" in e}

    def run(self, started: datetime | None = None) -> None:
        self._set("Running", {"running": {"startedAt": written(started or now())}})
        self.condition("PodScheduled", "True")
        self.object["spec"]["nodeName"] = "spot-1"

    def wait(self, reason: str, scheduled: datetime | None = None) -> None:
        self._set("Pending", {"waiting": {"reason": reason}})
        self.condition("PodScheduled", "True", at=scheduled)

    def end(self, code: int, why: str = "", reason: str | None = None) -> None:
        word = why or ("Error" if code else "Completed")
        state = {"terminated": {"exitCode": code, "reason": word, "startedAt": written(now())}}
        self._set("Failed" if code else "Succeeded", state)
        self.object["status"]["reason"] = reason

    def condition(
        self, kind: str, status: str, reason: str | None = None, at: datetime | None = None
    ) -> None:
        known = self.object["status"].setdefault("conditions", [])
        since = written(at or now())
        known.append(
            {"type": kind, "status": status, "reason": reason, "lastTransitionTime": since}
        )

    def delete(self, at: datetime | None = None) -> None:
        """Asked to go; stays while it has a finalizer."""
        self.is_fated = True
        self.object["metadata"]["deletionTimestamp"] = written(at or now())

    def vanish(self) -> None:
        self.api.pods.pop(self.name, None)

    def _set(self, phase: str, state: dict[str, Any]) -> None:
        self.is_fated = True
        status = {"name": "base", "image": "i", "imageID": "i", "ready": True, "restartCount": 0}
        self.object["status"].update(phase=phase, containerStatuses=[{**status, "state": state}])


Fate = Callable[[FakePod], None]


def pending(pod: FakePod) -> None:
    """Nothing becomes of it."""


@dataclass
class FakeKubernetes:
    """The server's state, read and changed by the test.

    A pod is pending until somebody looks at it; then its fate is applied, unless the test has set it.
    """

    fate: Fate = pending
    pods: dict[str, FakePod] = field(default_factory=dict)
    created: list[FakePod] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    log: str = ""
    quotas: list[dict[str, Any]] = field(default_factory=list)
    """The status of each quota of the namespace."""
    clock_s: float = 0.0
    """How far its clock is before ours."""
    port: int = 0
    on_look: Callable[[int], None] = lambda _: None
    """Called with the number of each read of a pod, before it is answered."""
    looks: int = 0

    def fail(self, code: int, n: int = 1, method: str = "*", path: str = "") -> None:
        self.faults.append(Fault(code, n, method, path))

    def connection(self) -> str:
        """Airflow's connection to it."""
        kube_config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}},
            ],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        return json.dumps(
            {"conn_type": "kubernetes", "extra": {"kube_config": json.dumps(kube_config)}}
        )

    # what the API does

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        name = body["metadata"]["name"]
        if name in self.pods:
            return refusal(409, "AlreadyExists", f'pods "{name}" already exists')
        body["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": written(now())}
        body["status"] = {"phase": "Pending"}
        pod = self.pods[name] = FakePod(body, self)
        self.created.append(pod)
        return web.json_response(body, status=201)

    async def _list(self, request: web.Request) -> web.Response:
        wanted = dict(
            term.split("=", 1)
            for term in request.query.get("labelSelector", "").split(",")
            if "=" in term
        )
        items = [p.object for p in self.pods.values() if wanted.items() <= p.labels.items()]
        return web.json_response(
            {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}
        )

    async def _read(self, request: web.Request) -> web.Response:
        self.looks += 1
        self.on_look(self.looks)
        pod = self.pods.get(request.match_info["name"])
        if pod is None:
            return gone(request)
        if not pod.is_fated:
            pod.is_fated = True
            self.fate(pod)
        return web.json_response(pod.object)

    async def _patch(self, request: web.Request) -> web.Response:
        pod = self.pods.get(request.match_info["name"])
        if pod is None:
            return gone(request)
        metadata = (await request.json())["metadata"]
        if metadata.get("uid", pod.uid) != pod.uid:
            return refusal(409, "Conflict", "Precondition failed: UID in precondition")
        for name, value in metadata.items():
            pod.object["metadata"][name] = value
        self._collect(pod)
        return web.json_response(pod.object)

    async def _delete(self, request: web.Request) -> web.Response:
        pod = self.pods.get(request.match_info["name"])
        if pod is None:
            return gone(request)
        body = await request.json() if request.can_read_body else {}
        if body.get("preconditions", {}).get("uid", pod.uid) != pod.uid:
            return refusal(409, "Conflict", "the UID in the precondition does not match")
        pod.object["metadata"].setdefault("deletionTimestamp", written(now()))
        self._collect(pod)
        return web.json_response(pod.object)

    async def _quotas(self, request: web.Request) -> web.Response:
        items = [{"metadata": {"name": "q"}, "status": status} for status in self.quotas]
        return web.json_response(
            {"kind": "ResourceQuotaList", "apiVersion": "v1", "metadata": {}, "items": items}
        )

    async def _log(self, request: web.Request) -> web.Response:
        return web.Response(text=self.log)

    def _collect(self, pod: FakePod) -> None:
        metadata = pod.object["metadata"]
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            pod.vanish()

    @web.middleware
    async def _inject(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.calls.append((request.method, request.path))
        for fault in self.faults:
            if not fault.n or fault.method not in ("*", request.method):
                continue
            if fault.path not in request.path:
                continue
            fault.n -= 1
            if fault.code == LOST_REPLY:
                await handler(request)
            if fault.code in (DROPPED, LOST_REPLY):
                assert request.transport
                request.transport.close()
                return web.Response()
            return refusal(fault.code, "Injected", "an injected fault")
        answer: web.StreamResponse = await handler(request)
        answer.headers["Date"] = format_datetime(
            now() + timedelta(seconds=self.clock_s), usegmt=True
        )
        return answer

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._inject])
        root = "/api/v1/namespaces/{namespace}/pods"
        app.add_routes(
            [
                web.post(root, self._create),
                web.get(root, self._list),
                web.get(root + "/{name}", self._read),
                web.patch(root + "/{name}", self._patch),
                web.delete(root + "/{name}", self._delete),
                web.get(root + "/{name}/log", self._log),
                web.get("/api/v1/namespaces/{namespace}/resourcequotas", self._quotas),
            ]
        )
        return app


@contextmanager
def fake_kubernetes() -> Iterator[FakeKubernetes]:
    """Serve one on a free port for the time of a block."""
    server, loop = FakeKubernetes(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fake-kubernetes")
    thread.start()
    runner = web.AppRunner(server.app(), access_log=None)

    async def start() -> int:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return int(runner.addresses[0][1])

    try:
        server.port = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def refusal(code: int, reason: str, message: str) -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }
    return web.json_response(body, status=code, headers={"Retry-After": "1"} if code == 429 else {})


def gone(request: web.Request) -> web.Response:
    return refusal(404, "NotFound", f'pods "{request.match_info["name"]}" not found')


def now() -> datetime:
    return datetime.now(UTC)


def ago(seconds: float) -> datetime:
    return now() - timedelta(seconds=seconds)


def written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
