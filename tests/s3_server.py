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
from contextlib import contextmanager
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
    port = port or free_port(host)
    own = Path(tempfile.mkdtemp(prefix="s3-"))
    folder = folder or own
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "s3.json").write_text(json.dumps(_identities()))
    named = _flags(folder, host, port)
    flags = [f"-{name}={value}" for name, value in named.items()]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen([_weed(), "server", "-s3", *flags], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + start_timeout_s
        ready = [
            lambda: answers(port, host),
            lambda: has_volumes(named["master.port"], host),
        ]
        _wait(server, ready, folder / "server.log", deadline)
        yield _client_environment(host, port)
    finally:
        _end(server, is_kept=folder != own)
        shutil.rmtree(own, ignore_errors=True)


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as s:
        s.bind((host, 0))
        return int(s.getsockname()[1])


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
    flags: dict[str, Any] = {
        "dir": folder,
        "ip": host,
        "ip.bind": host,
        "s3.port": port,
        "s3.port.grpc": free_port(host),
        "s3.port.lance": 0,  # else two servers at once fight for the ports of its catalogs
        "s3.port.iceberg": 0,
        "s3.config": folder / "s3.json",
        "volume.max": 100,
        "volume.preStopSeconds": 0,  # else its end takes ten seconds longer
        "master.volumeSizeLimitMB": 256,
    }
    # A gRPC port defaults to its port + 10,000, which may not exist: name every port.
    for part in ("master", "volume", "filer"):
        flags |= {f"{part}.port": free_port(host), f"{part}.port.grpc": free_port(host)}
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
