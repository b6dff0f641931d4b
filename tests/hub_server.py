"""A model hub on this machine: the few answers that huggingface_hub asks for, over real HTTP.

with hub_server() as hub: ...       `hub.models` may be changed while it runs
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_right"


@dataclass
class HubModel:
    """A model: its files, and who may have them."""

    files: dict[str, bytes]
    commit: str = COMMIT
    branches: tuple[str, ...] = ("main",)
    is_gated: bool = False
    sizes: dict[str, int] = field(default_factory=dict)
    """What it says of files that have another length."""


@dataclass
class Hub:
    """What the server answers with, and what it was asked."""

    url: str = ""
    models: dict[str, HubModel] = field(default_factory=dict)
    status: int | None = None
    """Answer everything with this status."""
    refused_files: tuple[str, ...] = ()
    """Cut the connection when one of these is asked for."""
    spoiled: Counter[str] = field(default_factory=Counter)
    """Give so many times zeros in place of a file's bytes."""
    elsewhere: dict[str, str] = field(default_factory=dict)
    """Files that lie in a chunk storage (Xet), and its address: the hub itself gives a key for it only."""
    asked: list[str] = field(default_factory=list)


@contextmanager
def hub_server() -> Iterator[Hub]:
    hub = Hub()

    class Handler(_Handler):
        shared = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    shared: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub = self.shared
        path = unquote(urlsplit(self.path).path)
        hub.asked.append(f"{self.command} {path}")
        if hub.status is not None:
            return self._send(hub.status, b"{}")
        if path.startswith("/xet-key/"):
            key = {"X-Xet-Cas-Url": hub.elsewhere[path.removeprefix("/xet-key/")]}
            key |= {"X-Xet-Access-Token": TOKEN, "X-Xet-Token-Expiration": str(2**40)}
            return self._send(200, b"{}", **key)
        for name, model in hub.models.items():
            if path.startswith(f"/api/models/{name}"):
                return self._about(name, model, path.removeprefix(f"/api/models/{name}"))
            if path.startswith(f"/{name}/resolve/"):
                return self._file(model, path.removeprefix(f"/{name}/resolve/"))
        return self._refuse(401, "RepoNotFound")

    def _about(self, name: str, model: HubModel, rest: str) -> None:
        kind, _, revision = rest.strip("/").partition("/")
        revision = revision or "main"
        if revision not in (*model.branches, model.commit):
            return self._refuse(404, "RevisionNotFound")
        files = [
            {
                "rfilename": file,
                "path": file,
                "type": "file",
                "oid": git_sha1(content),
                "blobId": git_sha1(content),
                "size": model.sizes.get(file, len(content)),
            }
            for file, content in model.files.items()
        ]
        if kind == "tree":
            return self._send(200, json.dumps(files).encode())
        about = {"id": name, "sha": model.commit, "siblings": files, "gated": model.is_gated}
        return self._send(200, json.dumps(about).encode())

    def _file(self, model: HubModel, rest: str) -> None:
        revision, _, file = rest.partition("/")
        if model.is_gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._refuse(403, "GatedRepo")
        if revision not in (*model.branches, model.commit):
            return self._refuse(404, "RevisionNotFound")
        if file in self.shared.refused_files:
            self.close_connection = True
            return None
        if file not in model.files:
            return self._refuse(404, "EntryNotFound")
        content = model.files[file]
        body = content
        if self.command == "GET" and self.shared.spoiled[file]:
            self.shared.spoiled[file] -= 1
            body = bytes(len(content))
        headers = {"ETag": f'"{git_sha1(content)}"', "X-Repo-Commit": model.commit}
        if file in self.shared.elsewhere:
            headers |= {"X-Xet-Hash": "a" * 64}
            headers |= {"X-Xet-Refresh-Route": f"{self.shared.url}/xet-key/{file}"}
        return self._send(200, body, **headers)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", **{"X-Error-Code": code})

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
