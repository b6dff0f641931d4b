"""A TCP proxy before the object store, which can be down: it refuses, or it hangs.

It also tells who asks when a PUT begins and when its reply comes back, so that a fault can fall
exactly between the two. S3 by plain HTTP only; it looks at request lines and changes nothing.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

_PIECE_BYTES = 65_536

OnPut = Callable[[str, bool], bool]
"""Called with the path and whether the reply is there already; True cuts the connection."""


class StoreProxy:
    """See the module. `port` is where it listens."""

    def __init__(self, upstream_port: int, sleep: Callable[[float], object] = time.sleep) -> None:
        self._sleep = sleep
        self._upstream = ("127.0.0.1", upstream_port)
        self._listener = _listen(0)
        self.port = int(self._listener.getsockname()[1])
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.last_puts: dict[str, float] = {}
        """Path → moment (monotonic) of the last answered PUT."""
        self.on_put: OnPut = lambda path, is_answered: False

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        _shut(self._listener)
        self._cut_all()
        self._flows.set()

    def hang(self, seconds: float) -> None:
        """Let nothing through for a while; connections stay open. Returns when it is over."""
        self._flows.clear()
        self._sleep(seconds)
        self._flows.set()

    def refuse(self, seconds: float) -> None:
        """Cut every connection and refuse new ones for a while. Returns when it is over."""
        _shut(self._listener)
        self._cut_all()
        self._sleep(seconds)
        self._listener = _listen(self.port)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _cut_all(self) -> None:
        with self._lock:
            found, self._open = self._open, set()
        for connection in found:
            _shut(connection)

    def _accept(self) -> None:
        listener = self._listener
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # closed: refusing, or over
                return
            try:
                server = socket.create_connection(self._upstream)
            except OSError:
                _shut(client)
                continue
            with self._lock:
                self._open |= {client, server}
            _Connection(self, client, server).start()

    def forget(self, *connections: socket.socket) -> None:
        """They are closed."""
        with self._lock:
            self._open -= set(connections)

    def wait_until_up(self) -> None:
        self._flows.wait()


class _Connection:
    """Two pumps. HTTP/1.1 without pipelining: one PUT at a time waits for its reply."""

    def __init__(self, proxy: StoreProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._path: str | None = None

    def start(self) -> None:
        for pump in (self._requests, self._replies):
            threading.Thread(target=self._run, args=(pump,), daemon=True).start()

    def _run(self, pump: Callable[[], None]) -> None:
        with suppress(OSError):
            pump()
        self._proxy.forget(self._client, self._server)
        _shut(self._client)
        _shut(self._server)

    def _requests(self) -> None:
        while piece := self._client.recv(_PIECE_BYTES):
            if path := _path_of_put(piece):
                self._path = path
                if self._proxy.on_put(path, False):
                    return
            self._proxy.wait_until_up()
            self._server.sendall(piece)

    def _replies(self) -> None:
        while piece := self._server.recv(_PIECE_BYTES):
            path, self._path = self._path, None
            if path:
                self._proxy.last_puts[path] = time.monotonic()
                if self._proxy.on_put(path, True):
                    return
            self._proxy.wait_until_up()
            self._client.sendall(piece)


def _path_of_put(piece: bytes) -> str | None:
    """The path of the PUT that begins here."""
    return piece.split(b" ", 2)[1].decode() if piece.startswith(b"PUT /") else None


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    return listener


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
