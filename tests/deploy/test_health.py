"""What a container's health check says of a component, asked over real HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from deploy.images.health import is_well, main


class ApiServer(HTTPServer):
    """Answers paths with a body; what it does not know is 404."""

    answers: dict[str, bytes]


class Handler(BaseHTTPRequestHandler):
    server: ApiServer

    def do_GET(self) -> None:
        body = self.server.answers.get(self.path)
        self.send_response(200 if body is not None else 404)
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ApiServer]:
    made = ApiServer(("127.0.0.1", 0), Handler)
    made.answers = {}
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def url(server: ApiServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def test_a_component_is_as_well_as_the_api_server_says(server: ApiServer) -> None:
    states = {"scheduler": {"status": "healthy"}, "triggerer": {"status": "unhealthy"}}
    server.answers["/api/v2/monitor/health"] = json.dumps(states).encode()
    assert is_well("scheduler", url(server))
    assert not is_well("triggerer", url(server))
    assert not is_well("dag_processor", url(server))


def test_the_api_server_is_well_when_tasks_can_speak_to_it(server: ApiServer) -> None:
    server.answers["/api/v2/version"] = b"{}"
    assert not is_well("api_server", url(server))
    server.answers["/execution/health"] = b"{}"
    assert is_well("api_server", url(server))


def test_nobody_is_well_when_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_well("scheduler", "http://127.0.0.1:9")
    monkeypatch.setenv("API_SERVER_URL", "http://127.0.0.1:9")
    assert main(["scheduler"]) == 1
    assert main(["schedular"]) == 2
