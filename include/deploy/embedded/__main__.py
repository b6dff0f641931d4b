"""The command line of the embedded Airflow: `make up` and `make down` call it.

Settings, in the environment or in the file `.env`: SHARDLINE_HOME (a folder, default var; Airflow
lives in its folder airflow), SHARDLINE_PORT (default 8080, or any free port when it is taken), and
every setting of Airflow as AIRFLOW__SECTION__KEY, in `.env` only.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from dotenv import dotenv_values

from deploy.embedded.environment import PROJECT
from deploy.embedded.errors import StackError
from deploy.embedded.stack import Stack


def read_env_file(path: Path) -> dict[str, str]:
    """Return the file's settings that the environment does not set itself."""
    values = dotenv_values(path, interpolate=False) if path.exists() else {}
    return {name: v for name, v in values.items() if v is not None and name not in os.environ}


def open_stack(env_file: Path = PROJECT / ".env") -> Stack:
    """The stack that the environment describes, once the file's settings are in it."""
    changes = read_env_file(env_file)
    os.environ.update(changes)  # where the library, and the size of the pools, look for them
    return Stack(PROJECT / os.environ.get("SHARDLINE_HOME", "var") / "airflow", changes=changes)


def wanted_port() -> int | None:
    port = os.environ.get("SHARDLINE_PORT")
    if port and not port.isdecimal():
        raise StackError(f"SHARDLINE_PORT is {port!r}, and must be a number")
    return int(port) if port else None


def up(stack: Stack) -> int:
    was_needed = stack.up(wanted_port())
    print(f"airflow: {'up' if was_needed else 'already up'}: {stack.url}")
    print(f"airflow: log in as admin with the password {stack.secrets.admin_password}")
    print(f"airflow: logs are in {stack.home.logs}; stop it with `make down`")
    return 0


def down(stack: Stack) -> int:
    was_up = any(stack.pids().values())
    stack.down()
    print("airflow: stopped" if was_up else "airflow: it was not running")
    return 0


def remove(stack: Stack) -> int:
    stack.remove()
    print(f"airflow: stopped, and {stack.home.folder} removed")
    return 0


def status(stack: Stack) -> int:
    logs = stack.logs()
    for name, pid in stack.pids().items():
        print(f"{name:14} {f'running, pid {pid}' if pid else 'not running':22} {logs[name]}")
    is_up = stack.is_up()
    print(f"{stack.url}: {'healthy' if is_up else 'not up: `make up` starts it'}")
    return 0 if is_up else 1


def airflow(stack: Stack, arguments: list[str]) -> int:
    return stack.airflow(*arguments, capture=False).returncode


COMMANDS = {"up": up, "down": down, "status": status, "remove": remove}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.embedded", description=__doc__)
    parser.add_argument("command", choices=[*COMMANDS, "airflow"])
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of `airflow`")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a cut `up` leaves nothing running
    stack = open_stack()
    try:
        if chosen.command == "airflow":
            return airflow(stack, chosen.arguments)
        return COMMANDS[chosen.command](stack)
    except StackError as error:
        print(f"airflow: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
