"""The store that can be down, before a plain HTTP server."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.faults_proxy import StoreProxy
from tests.waits import until

pytestmark = pytest.mark.timeout(120)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.seen.append((self.path, body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    seen: list[tuple[str, bytes]]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.seen = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def proxy(server: Server) -> Iterator[StoreProxy]:
    with StoreProxy(server.server_address[1]) as proxy:
        yield proxy


def put(proxy: StoreProxy, path: str, body: bytes = b"x") -> bytes:
    client = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=20)
    try:
        client.request("PUT", path, body)
        return client.getresponse().read()
    finally:
        client.close()


def test_it_passes_on_what_comes_whole(proxy: StoreProxy, server: Server) -> None:
    body = b"line\n" * 100_000
    assert put(proxy, "/bucket/object", body) == b"ok"
    assert server.seen == [("/bucket/object", body)]
    assert "/bucket/object" in proxy.last_puts


def test_a_put_is_told_before_it_goes_through_and_when_it_is_answered(
    proxy: StoreProxy, server: Server
) -> None:
    told: list[tuple[str, bool, int]] = []

    def on_put(path: str, is_answered: bool) -> bool:
        told.append((path, is_answered, len(server.seen)))
        return False

    proxy.on_put = on_put
    put(proxy, "/a")
    assert told == [("/a", False, 0), ("/a", True, 1)]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_connection_can_be_cut_before_the_put_or_before_its_reply(
    proxy: StoreProxy, server: Server, is_late: bool
) -> None:
    proxy.on_put = lambda path, is_answered: is_answered is is_late
    with pytest.raises((http.client.HTTPException, OSError)):
        put(proxy, "/a")
    assert len(server.seen) == is_late


def test_while_it_hangs_nothing_goes_through_and_afterwards_everything_does(
    proxy: StoreProxy, server: Server
) -> None:
    began = threading.Event()
    proxy.on_put = lambda path, is_answered: began.set() or False  # type: ignore[func-returns-value]
    proxy._flows.clear()
    replies: list[bytes] = []
    client = threading.Thread(target=lambda: replies.append(put(proxy, "/a")))
    client.start()
    assert began.wait(20)
    assert (server.seen, replies) == ([], [])
    proxy.hang(0)
    client.join()
    assert replies == [b"ok"]


def test_after_it_refused_it_takes_connections_again(server: Server) -> None:
    over = threading.Event()

    def is_refused() -> bool:
        try:
            return put(proxy, "/a") != b"ok"
        except OSError:
            return True

    with StoreProxy(server.server_address[1], sleep=lambda seconds: over.wait(60)) as proxy:
        refusing = threading.Thread(target=proxy.refuse, args=(1.0,))
        refusing.start()
        try:
            until("refusal", is_refused)
        finally:
            over.set()
            refusing.join()
        assert put(proxy, "/a") == b"ok"
