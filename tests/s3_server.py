"""A real S3 server for tests: SeaweedFS from a Python wheel, one process, one folder.

    with s3_server() as env: ...          `env` points any S3 client at it; up in about 4 s

Two of its flags are not obvious: with the default of 8 volumes the second bucket answers 500
InternalError, and without a key file every key is let in.
"""

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

KEY, SECRET = "test", "testtest"


@contextmanager
def s3_server(
    port: int = 0,
    folder: Path | None = None,
    start_timeout_s: float = 60,
    host: str = "127.0.0.1",
) -> Iterator[dict[str, str]]:
    """Run a server; yield the environment that points clients at it. `folder` outlives it.

    `host` is the one address of this machine where it listens: pods do not reach the default.
    """
    own = Path(tempfile.mkdtemp(prefix="s3-"))
    folder = folder or own
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "s3.json").write_text(json.dumps(_identities()))
    try:
        server, port = _start(folder, host, port, start_timeout_s)
        try:
            yield _client_environment(host, port)
        finally:
            _end(server, is_kept=folder != own)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _start(
    folder: Path, host: str, wanted_port: int, timeout_s: float, tries: int = 3
) -> tuple[subprocess.Popen[bytes], int]:
    """A server that answers, and its port. What was free may be taken by now: others are tried."""
    named = _flags(folder, host, wanted_port)
    flags = [f"-{name}={value}" for name, value in named.items()]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen([_weed(), "server", "-s3", *flags], stdout=log, stderr=log)
    ready = [
        lambda: answers(named["s3.port"], host),
        lambda: has_volumes(named["master.port"], host),
    ]
    try:
        _wait(server, ready, folder / "server.log", time.monotonic() + timeout_s)
    except BaseException as error:
        _end(server, is_kept=False)
        if tries > 1 and isinstance(error, RuntimeError):
            return _start(folder, host, wanted_port, timeout_s, tries - 1)
        raise
    return server, named["s3.port"]


def free_ports(n: int, host: str = "127.0.0.1") -> list[int]:
    """So many ports, no two of them the same: all are held until the last is chosen."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(n)]
        for one in sockets:
            one.bind((host, 0))
        return [int(one.getsockname()[1]) for one in sockets]


def answers(port: int, host: str = "127.0.0.1") -> bool:
    """True once the gateway speaks: 403 without keys. The port alone opens before it is ready."""
    try:
        urllib.request.urlopen(f"http://{host}:{port}/", timeout=2).close()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code == 403
    except OSError:
        return False
    return True


def has_volumes(master_port: int, host: str = "127.0.0.1") -> bool:
    """True once the master knows its volumes: before, the objects of an old folder answer 500."""
    try:
        with urllib.request.urlopen(f"http://{host}:{master_port}/dir/status", timeout=2) as reply:
            return bool(json.load(reply)["Topology"]["Max"])
    except OSError:
        return False


def _identities() -> dict[str, object]:
    credentials = [{"accessKey": KEY, "secretKey": SECRET}]
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    return {"identities": [{"name": "test", "credentials": credentials, "actions": actions}]}


def _flags(folder: Path, host: str, port: int) -> dict[str, Any]:
    free = iter(free_ports(8, host))
    flags: dict[str, Any] = {
        "dir": folder,
        "ip": host,
        "ip.bind": host,
        "s3.port": port or next(free),
        "s3.port.grpc": next(free),
        "s3.port.lance": 0,  # else two servers at once fight for the ports of its catalogs
        "s3.port.iceberg": 0,
        "s3.config": folder / "s3.json",
        "volume.max": 100,
        "volume.preStopSeconds": 0,  # else its end takes ten seconds longer
        "master.volumeSizeLimitMB": 256,
    }
    # A gRPC port defaults to its port + 10,000, which may not exist: name every port.
    for part in ("master", "volume", "filer"):
        flags |= {f"{part}.port": next(free), f"{part}.port.grpc": next(free)}
    return flags


def _weed() -> str:
    return shutil.which("weed") or str(Path(sys.executable).with_name("weed"))


def _wait(
    server: subprocess.Popen[bytes], ready: list[Callable[[], bool]], log: Path, deadline: float
) -> None:
    while not all(is_so() for is_so in ready):
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the S3 server did not start: {log.read_text()[-2_000:]}")
        time.sleep(0.1)


def _end(server: subprocess.Popen[bytes], is_kept: bool) -> None:
    """What nobody reads again needs no orderly end, which takes 15 s where a client is still connected."""
    if is_kept:
        server.terminate()
        try:
            server.wait(30)
            return
        except subprocess.TimeoutExpired:
            pass
    server.kill()
    server.wait()


def _client_environment(host: str, port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
