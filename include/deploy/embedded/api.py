"""A small client of Airflow's REST API: what the demo and the tests ask of a running stack."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

import httpx

from deploy.embedded.errors import ApiError

PAGE_ROWS = 100  # Airflow caps a page at this
Json = dict[str, Any]


class AirflowApi:
    """One user's view of one Airflow. The token is fetched when it is first needed, or is stale."""

    def __init__(self, url: str, username: str, password: str, timeout_s: float = 60) -> None:
        self._login = {"username": username, "password": password}
        # Not through a proxy that the environment names: the server is on this machine.
        self._http = httpx.Client(base_url=url, timeout=timeout_s, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def request(self, method: str, path: str, **options: Any) -> Any:
        """Call `/api/v2/{path}` and return its JSON.

        Raises:
            ApiError: the answer is no success, with its status.
            httpx.TransportError: there was no answer.
        """
        answer = self._http.request(method, f"/api/v2/{path}", **options)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            token = self._post_login()
            self._http.headers["Authorization"] = f"Bearer {token}"
            answer = self._http.request(method, f"/api/v2/{path}", **options)
        if not answer.is_success:
            raise ApiError(f"{method} {path}", answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def is_execution_ready(self) -> bool:
        """True once tasks can be served. Asking builds that part of the server: it takes seconds."""
        try:
            return self._http.get("/execution/health").is_success
        except httpx.TransportError:
            return False

    def health(self) -> dict[str, str]:
        """Return component -> "healthy" | "unhealthy"; empty when there is no answer."""
        try:
            health = self.request("GET", "monitor/health")
        except (httpx.TransportError, ApiError):
            return {}
        return {name: part["status"] or "unknown" for name, part in health.items() if part}

    def ensure_pool(self, name: str, slots: int) -> None:
        """Create the pool; one that exists keeps the slots that somebody gave it.

        A task that waits for a pod or a dag run in the triggerer keeps its slot.
        """
        body = {
            "name": name,
            "slots": slots,
            "description": "made by the embedded stack",
            "include_deferred": True,
        }
        try:
            self.request("POST", "pools", json=body)
        except ApiError as error:
            if error.status != httpx.codes.CONFLICT:
                raise

    def has_dag(self, dag_id: str, since: datetime) -> bool:
        """Whether the dag was parsed after a moment: before, it may be that of older files."""
        try:
            dag = self.request("GET", f"dags/{_quoted(dag_id)}")
        except ApiError as error:
            if error.status == httpx.codes.NOT_FOUND:
                return False
            raise
        parsed = dag["last_parsed_time"]
        return parsed is not None and datetime.fromisoformat(parsed) >= since

    def import_errors(self) -> dict[str, str]:
        """Return file -> stack trace of the dag files that could not be imported."""
        errors = self._pages("importErrors", "import_errors")
        return {error["filename"]: error["stack_trace"] for error in errors}

    def unpause(self, dag_id: str) -> None:
        self.request("PATCH", f"dags/{_quoted(dag_id)}", json={"is_paused": False})

    def trigger(
        self,
        dag_id: str,
        conf: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        partition_key: str | None = None,
        logical_date: str | None = None,
    ) -> str:
        """Start a run and return its id; a second one with the same id is refused with 409."""
        body: Json = {"conf": dict(conf or {}), "logical_date": logical_date}
        chosen = {"dag_run_id": run_id, "partition_key": partition_key}
        body |= {name: value for name, value in chosen.items() if value is not None}
        run = self.request("POST", f"dags/{_quoted(dag_id)}/dagRuns", json=body)
        return str(run["dag_run_id"])

    def run(self, dag_id: str, run_id: str) -> Json:
        run: Json = self.request("GET", _run_path(dag_id, run_id))
        return run

    def runs(self, dag_id: str) -> list[Json]:
        return list(self._pages(f"dags/{_quoted(dag_id)}/dagRuns", "dag_runs"))

    def set_run_state(self, dag_id: str, run_id: str, state: str) -> None:
        self.request("PATCH", _run_path(dag_id, run_id), json={"state": state})

    def task_instances(self, dag_id: str, run_id: str) -> list[Json]:
        return list(self._pages(f"{_run_path(dag_id, run_id)}/taskInstances", "task_instances"))

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str]:
        """Return task -> state; a mapped one is `infer_shard[3]`, one without a state is "none"."""
        tasks = self.task_instances(dag_id, run_id)
        return {task_name(task): task["state"] or "none" for task in tasks}

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return what a task pushed; None while there is nothing."""
        task = f"{_run_path(dag_id, run_id)}/taskInstances/{_quoted(task_id)}"
        try:
            return self.request("GET", f"{task}/xcomEntries/{_quoted(key)}")["value"]
        except ApiError as error:
            if error.status == httpx.codes.NOT_FOUND:
                return None
            raise

    def log(self, dag_id: str, run_id: str, task_id: str, map_index: int, try_number: int) -> str:
        """Return one try's log as text; of a traceback, the frames that are not Airflow's own."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{_quoted(task_id)}/logs/{try_number}"
        params = {"map_index": map_index, "full_content": True}
        answer = self.request("GET", path, params=params, headers={"Accept": "application/json"})
        return "\n".join(line for event in answer["content"] for line in _log_lines(event))

    def _post_login(self) -> str:
        answer = self._http.post("/auth/token", json=self._login)
        if not answer.is_success:
            raise ApiError("POST /auth/token", answer.status_code, answer.text)
        return str(answer.json()["access_token"])

    def _pages(self, path: str, field: str) -> Iterator[Json]:
        offset = 0
        while True:
            params = {"limit": PAGE_ROWS, "offset": offset, "order_by": "id"}
            page = self.request("GET", path, params=params)[field]
            yield from page
            offset += len(page)
            if len(page) < PAGE_ROWS:
                return


def task_name(task: Json) -> str:
    index = task["map_index"]
    return task["task_id"] if index < 0 else f"{task['task_id']}[{index}]"


def _run_path(dag_id: str, run_id: str) -> str:
    return f"dags/{_quoted(dag_id)}/dagRuns/{_quoted(run_id)}"


def _quoted(name: str) -> str:
    return quote(name, safe="~")


def _log_lines(event: Json | str) -> Iterator[str]:
    if isinstance(event, str):
        yield event
        return
    yield " ".join(filter(None, [event.get("timestamp") or "", event["event"]]))
    for error in event.get("error_detail") or ():
        for frame in error.get("frames") or ():
            if "/site-packages/airflow/" not in frame["filename"]:
                yield f"    {frame['filename']}:{frame['lineno']} in {frame['name']}"
        yield f"    {error.get('exc_type')}: {error.get('exc_value')}"
