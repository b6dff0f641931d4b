"""Start, look at and stop the embedded Airflow.

The api-server comes first and is warmed up: a task that starts before the server has built its
execution API fails. Then the scheduler, the dag-processor and the triggerer, one of each.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from deploy.embedded.api import AirflowApi
from deploy.embedded.component import Component, stop
from deploy.embedded.environment import PROJECT, Folders, environment
from deploy.embedded.errors import StackError
from deploy.embedded.home import Home, free_port
from deploy.embedded.postgres import Postgres
from shardline.runners.gpu.settings import GpuSettings

HEALTH_TIMEOUT_S = 300.0  # a busy machine of two cores took 120
DAGS_TIMEOUT_S = 300.0
COMPONENTS = {
    "api-server": [],
    # Task logs are read from the same disk: two servers for them are 270 MB and two ports saved.
    "scheduler": ["--skip-serve-logs"],
    "dag-processor": [],
    "triggerer": ["--skip-serve-logs"],
}
WATCHED = ("scheduler", "dag_processor", "triggerer")
ENDED = ("success", "failed")
ENGINE_BYTES = 6 << 30  # one vLLM engine with a small model on a CPU peaks at 4 GB; room beside it
MAX_ENGINES = 4

Say = Callable[[str], None]


def local_pools(cores: int, memory_bytes: int) -> dict[str, int]:
    """How many shards run at once here: an engine computes on one core, and has its memory.

    One more than there are cores, since engines that start or end leave theirs idle now and then.
    """
    return {"local": max(1, min(cores + 1, memory_bytes // ENGINE_BYTES, MAX_ENGINES))}


def gpu_pools() -> dict[str, int]:
    """How many pods there are at once, as the deployment says (SHARDLINE_GPU_PODS, _PODS_SHORT)."""
    settings = GpuSettings()
    return {"gpu": settings.pods, "gpu_short": settings.pods_short}


def pools_here() -> dict[str, int]:
    """The pools of this machine and this deployment, by what the environment says now."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return gpu_pools() | local_pools(os.cpu_count() or 1, memory_bytes)


class Stack:
    """One embedded Airflow. Any process may make this object of a home: the state is on disk."""

    def __init__(
        self,
        folder: Path,
        folders: Folders | None = None,
        changes: Mapping[str, str] | None = None,
        say: Say = print,
    ) -> None:
        self.home = Home(folder.resolve())
        self.home.make()
        self.secrets = self.home.secrets()
        self.postgres = Postgres(self.home.database, self.home.socket_folder())
        self._folders = folders or Folders()
        self._changes = dict(changes or {})
        self._say = say
        self._components = {name: self._component(name) for name in COMPONENTS}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.home.port()}"

    def api(self) -> AirflowApi:
        return AirflowApi(self.url, "admin", self.secrets.admin_password)

    def up(self, port: int | None = None, pools: Mapping[str, int] | None = None) -> bool:
        """Start what is not running and wait until it is healthy; say whether there was any need.

        Without `pools` it gets those of `pools_here`.

        Raises:
            StackError: something did not start; all of it is stopped again.
        """
        with self.home.lock():
            if self.is_up():
                return False
            self._stop_all()  # what a crash has left
            try:
                self._start_all(self.home.choose_port(port), pools or pools_here())
            except BaseException:
                self._stop_all()
                raise
            return True

    def down(self) -> None:
        with self.home.lock():
            self._stop_all()

    def remove(self) -> None:
        """Stop it and forget everything: database, logs, secrets."""
        self.down()
        self.home.remove()

    def is_up(self) -> bool:
        pids = [self.postgres.pid, *(c.pid for c in self._components.values())]
        return None not in pids and all(self.health().get(name) == "healthy" for name in WATCHED)

    def pids(self) -> dict[str, int | None]:
        components = {name: component.pid for name, component in self._components.items()}
        return {"postgres": self.postgres.pid} | components

    def logs(self) -> dict[str, Path]:
        components = {name: component.log for name, component in self._components.items()}
        return {"postgres": self.postgres.log} | components

    def health(self) -> dict[str, str]:
        if self.home.port() is None:
            return {}
        api = self.api()
        try:
            return api.health()
        finally:
            api.close()

    def start(self, name: str) -> None:
        """Start one component that has died, beside those that live."""
        self._components[name].start(_airflow(name, *COMPONENTS[name]), self.environment(), PROJECT)

    def environment(self) -> dict[str, str]:
        """What every component is told."""
        return environment(
            self.home,
            self.secrets,
            self._folders,
            self.postgres.uri(),
            self.home.port() or 0,
            os.environ,
            self._changes,
        )

    def check(self) -> None:
        """Raise StackError when a component has died, with the end of its log."""
        for name, component in self._components.items():
            if component.pid is None:
                raise StackError(
                    f"{name} has died. The end of {component.log}:\n{component.tail()}\n\n"
                    "Start again with `make down` and `make up`."
                )

    def airflow(self, *arguments: str, capture: bool = True) -> subprocess.CompletedProcess[str]:
        """Run Airflow's own command line against this stack; captured, or in the terminal."""
        return subprocess.run(
            _airflow(*arguments),
            env=self.environment(),
            cwd=PROJECT,
            text=True,
            stdin=subprocess.DEVNULL if capture else None,
            stdout=subprocess.PIPE if capture else None,
            stderr=subprocess.STDOUT if capture else None,
            check=False,
        )

    def wait_for_dags(self, dag_ids: Iterable[str], timeout_s: float = DAGS_TIMEOUT_S) -> None:
        """Wait until this dag-processor has parsed the dags.

        A healthy Airflow does not know them yet, or knows them as they were before an update.

        Raises:
            StackError: one is still unknown; the message has the import errors.
        """
        api = self.api()
        started = datetime.fromtimestamp(
            (self.home.pids / "dag-processor.json").stat().st_mtime, UTC
        )
        try:
            for dag_id in dag_ids:
                parsed = partial(api.has_dag, dag_id, started)
                self._wait(f"the dag {dag_id}", parsed, timeout_s)
        except TimeoutError as error:
            errors = "\n".join(f"{f}:\n{trace}" for f, trace in api.import_errors().items())
            log = self._components["dag-processor"].log
            raise StackError(f"{error}. {errors or f'No import errors; see {log}'}") from error
        finally:
            api.close()

    def _component(self, name: str) -> Component:
        return Component(name, self.home.pids / f"{name}.json", self.home.logs / f"{name}.log")

    def _start_all(self, port: int, pools: Mapping[str, int]) -> None:
        started = time.monotonic()
        self._say("airflow: starting PostgreSQL")
        self.postgres.start()
        self._migrate()
        api = self.api()
        try:
            self._say(f"airflow: starting the api-server on port {port} (about 15 s)")
            self.start("api-server")
            self._wait_healthy("the api-server", api.is_execution_ready)
            self._say("airflow: starting scheduler, dag-processor and triggerer (about 15 s)")
            for name in COMPONENTS:
                if name != "api-server":
                    self.start(name)
            for pool, slots in pools.items():
                api.ensure_pool(pool, slots)
            self._wait_healthy("Airflow", lambda: _is_healthy(api.health()))
        finally:
            api.close()
        self._say(f"airflow: healthy after {time.monotonic() - started:.0f} s")

    def _migrate(self) -> None:
        marker = self.home.folder / "migrated"
        release = f"{version('apache-airflow')} {self.home.database.stat().st_ino}"
        if marker.exists() and marker.read_text() == release:
            return
        self._say("airflow: making its tables (about 10 s, once)")
        done = self.airflow("db", "migrate")
        (self.home.logs / "migrate.log").write_text(done.stdout)
        if done.returncode:
            raise StackError(f"`airflow db migrate` failed:\n{done.stdout[-3_000:]}")
        marker.write_text(release)

    def _stop_all(self) -> None:
        components = list(self._components.values())
        # The api-server goes last: tasks that end within the grace report to it.
        for killed in [*stop(components[1:]), *stop(components[:1])]:
            self._say(f"airflow: {killed} did not stop in time and was killed")
        self.postgres.stop()

    def _wait_healthy(self, what: str, is_ready: Callable[[], bool]) -> None:
        try:
            self._wait(what, is_ready, HEALTH_TIMEOUT_S)
        except TimeoutError as error:
            raise StackError(f"{error}; its logs are in {self.home.logs}") from error

    def _wait(self, what: str, is_ready: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            for component in self._components.values():
                if component.record.exists() and component.pid is None:
                    self.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} was not ready after {timeout_s:.0f} s")
            time.sleep(0.5)


class EmbeddedAirflow:
    """A running stack as a test or the demo sees it."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.api = stack.api()
        self.url = stack.url

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None, **chosen: Any) -> str:
        """Start a run (`run_id=`, `partition_key=`, `logical_date=` may be chosen); return its id."""
        return self.api.trigger(dag_id, conf, **chosen)

    def wait(self, dag_id: str, run_id: str, timeout_s: float = 600) -> str:
        """Wait for the end of a run and return its state, "success" or "failed".

        Raises:
            TimeoutError: it has not ended; the message has its tasks' states.
            StackError: a component died meanwhile.
        """
        deadline = time.monotonic() + timeout_s
        while (state := self.api.run(dag_id, run_id)["state"]) not in ENDED:
            self.stack.check()
            if time.monotonic() > deadline:
                tasks = self.task_states(dag_id, run_id)
                raise TimeoutError(f"{dag_id} {run_id} is {state} after {timeout_s:.0f} s: {tasks}")
            time.sleep(0.5)
        return str(state)

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str]:
        return self.api.task_states(dag_id, run_id)

    def logs(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
        """Return the log of a task's last try."""
        for task in self.api.task_instances(dag_id, run_id):
            if (task["task_id"], task["map_index"]) == (task_id, map_index):
                return self.api.log(dag_id, run_id, task_id, map_index, task["try_number"])
        raise StackError(f"{dag_id} {run_id} has no task {task_id}[{map_index}]")

    def cli(self, *arguments: str) -> str:
        """Run `airflow ...` against the stack and return what it printed."""
        done = self.stack.airflow(*arguments)
        if done.returncode:
            raise StackError(f"airflow {' '.join(arguments)} failed:\n{done.stdout[-3_000:]}")
        return done.stdout


@contextmanager
def embedded_airflow(
    home: Path,
    dags_folder: Path | None = None,
    plugins_folder: Path | None = None,
    env: Mapping[str, str] | None = None,
    dags: Iterable[str] = (),
    pools: Mapping[str, int] | None = None,
    port: int | None = None,
    say: Say = print,
) -> Iterator[EmbeddedAirflow]:
    """Run a whole Airflow for the time of a block, with the `dags` named already parsed.

    It takes any free port, not 8080, where a person's may be. Its database ends with the block; logs
    stay in `home`.
    """
    default = Folders()
    folders = Folders(dags_folder or default.dags, plugins_folder or default.plugins)
    stack = Stack(home, folders, env, say)
    try:
        stack.up(port or free_port(), pools)
        stack.wait_for_dags(dags)
        airflow = EmbeddedAirflow(stack)
        try:
            yield airflow
        finally:
            airflow.api.close()
    finally:
        stack.down()
        stack.home.remove_database()


def _is_healthy(health: Mapping[str, str]) -> bool:
    return all(health.get(name) == "healthy" for name in WATCHED)


def _airflow(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "airflow", *arguments]
