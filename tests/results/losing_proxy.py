"""A proxy that loses one reply: of the first PUT whose path holds a word, it hangs up.

    python losing_proxy.py http://127.0.0.1:8333 part-000000     prints its port, then what it lost

A process of its own: delta-rs holds Python's lock while it waits for some replies, so a proxy in a
thread of the same process would never get to answer.
"""

from __future__ import annotations

import http.client
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

UPSTREAM, VICTIM = urlsplit(sys.argv[1]), sys.argv[2]


class Proxy(ThreadingHTTPServer):
    daemon_threads = True
    has_lost = False


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        assert UPSTREAM.hostname
        upstream = http.client.HTTPConnection(UPSTREAM.hostname, UPSTREAM.port, timeout=60)
        # the signature covers Host: the server must see the one that was signed
        upstream.request(self.command, self.path, body, dict(self.headers))
        reply = upstream.getresponse()
        content = reply.read()
        upstream.close()
        if self.command == "PUT" and VICTIM in unquote(self.path) and not self.server.has_lost:
            self.server.has_lost = True
            print("lost", reply.status, unquote(self.path), flush=True)
            self.close_connection = True
            return
        self.send_response_only(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        is_head = self.command == "HEAD"
        length = reply.getheader("content-length", "0") if is_head else str(len(content))
        self.send_header("content-length", length)
        self.end_headers()
        self.wfile.write(b"" if is_head else content)

    def __getattr__(self, name: str) -> object:
        if name.startswith("do_"):
            return self.pass_on
        raise AttributeError(name)

    def log_message(self, *_: object) -> None:
        """The tests say what they want to say."""


if __name__ == "__main__":
    proxy = Proxy(("127.0.0.1", 0), Handler)
    print(proxy.server_address[1], flush=True)
    proxy.serve_forever()
