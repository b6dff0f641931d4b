"""`make demo`: a real job from nothing to a published table, and proof that it did what it says.

It makes the corpus and the model, starts Airflow, triggers the dag `batch_inference` as a person
would, follows the run, and checks the table against the human ratings of the reviews. A run that an
earlier demo left unfinished is gone on with: nothing that was inferred is inferred again.

    KEEP=1    leave Airflow up          ROWS=100    another number of reviews
    FRESH=1   run the job again, though it is done
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deploy.embedded.__main__ import open_stack, read_env_file, wanted_port
from deploy.embedded.api import Json, task_name
from deploy.embedded.environment import PROJECT
from deploy.embedded.errors import StackError
from deploy.embedded.stack import ENDED, EmbeddedAirflow, Stack
from samples import reviews
from shardline.plan import timestamp

if TYPE_CHECKING:
    from shardline.plan import Plan
    from shardline.results.publish import Publication
    from shardline.status.read import StatusReader
    from shardline.store import Store

DAG = "batch_inference"
WAVES = "infer_locally"
JOB_FILE = "review_sentiment.yaml"
POLL_S = 2.0
STATUS_EVERY_S = 10.0
SAME_STATUS_EVERY_S = 60.0  # nothing new: a sign of life
LOG_LINES = 15
SAMPLE_ROWS = 8
CORPUS = str(PROJECT / reviews.FOLDER / "*.jsonl")


class Agreement(NamedTuple):
    """Rows with a prediction and a rating that leans to a side; of them: equal, rated positive."""

    rated: int
    right: int
    positive: int


class Follower:
    """Watches one dag run and prints what is new: a task that ended, or how far the rows are."""

    def __init__(self, airflow: EmbeddedAirflow, run_id: str) -> None:
        self.airflow = airflow
        self.run_id = run_id
        self.job_id: str | None = None
        self._told: dict[str, str] = {}
        self._line = ""
        self._reader: StatusReader | None = None
        self._started = self._status_at = time.monotonic()

    def follow(self) -> str:
        """Return the run's state at its end."""
        while True:
            state = str(self.airflow.api.run(DAG, self.run_id)["state"])
            states = self.airflow.task_states(DAG, self.run_id)
            self._tell_tasks(states)
            if state in ENDED:
                return state
            self._tell_status(states)
            self.airflow.stack.check()
            time.sleep(POLL_S)

    def _tell_tasks(self, states: dict[str, str]) -> None:
        for task, state in settled(states).items():
            if self._told.get(task) != state:
                self._told[task] = state
                self._say(f"{task}: {state}")

    def _tell_status(self, states: dict[str, str]) -> None:
        now = time.monotonic()
        if states.get("run_waves") not in ("running", "deferred"):
            return
        if now - self._status_at < STATUS_EVERY_S or (reader := self._status_reader()) is None:
            return
        line = reader.read(datetime.now(UTC)).line()
        if line != self._line or now - self._status_at > SAME_STATUS_EVERY_S:
            self._line, self._status_at = line, now
            self._say(line)

    def _status_reader(self) -> StatusReader | None:
        if self._reader is None and self.find_job() is not None:
            from shardline.status.read import StatusReader

            self._reader = StatusReader(*open_job(str(self.job_id)))
        return self._reader

    def find_job(self) -> str | None:
        """The id of the job that the run works on, once it is planned."""
        if self.job_id is None:
            self.job_id = self.airflow.api.xcom(DAG, self.run_id, "plan_job", "job_id")
        return self.job_id

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:7.0f} s  {text}", flush=True)


def settled(states: dict[str, str]) -> dict[str, str]:
    """Return task -> state, of the tasks all of whose mapped instances have ended or must wait."""
    instances = defaultdict(list)
    for name, state in states.items():
        instances[name.partition("[")[0]].append(state)
    loud = ("success", "failed", "up_for_retry", "upstream_failed", "skipped")
    return {
        task: _summary(found)
        for task, found in instances.items()
        if all(state in loud for state in found)
    }


def _summary(states: list[str]) -> str:
    counts = {state: states.count(state) for state in dict.fromkeys(states)}
    if len(states) == 1:
        return states[0]
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def prepare() -> None:
    """Make corpus and model.

    Raises:
        StackError: there is no engine on this system.
    """
    if importlib.util.find_spec("vllm") is None:
        raise StackError("it needs vLLM, which is installed on Linux x86-64 only; see `make setup`")
    from samples import smollm2

    folder = PROJECT / reviews.FOLDER
    if not reviews.is_made(folder):
        print("demo: fetching the reviews (2.5 MB)", flush=True)
    reviews.make_reviews(folder)
    print("demo: corpus ready: 14,313 review sentences with human ratings", flush=True)
    smollm2.make_smollm2(PROJECT / smollm2.FOLDER)
    print("demo: model ready: SmolLM2-135M-Instruct, float16", flush=True)


@contextmanager
def running(stack: Stack) -> Iterator[EmbeddedAirflow]:
    """Have Airflow up for a block. One that was up before stays up, as with KEEP=1."""
    was_down = stack.up(wanted_port())
    airflow = EmbeddedAirflow(stack)
    try:
        stack.wait_for_dags([DAG, WAVES])
        yield airflow
    finally:
        airflow.api.close()
        if was_down and not os.environ.get("KEEP"):
            print("demo: stopping Airflow (about 15 s)", flush=True)
            stack.down()


def start_run(airflow: EmbeddedAirflow) -> str:
    """Trigger the job, or go on with the run that an interrupted demo left."""
    fresh = os.environ.get("FRESH")
    living = [run["dag_run_id"] for run in airflow.api.runs(DAG) if run["state"] not in ENDED]
    unfinished = [run_id for run_id in living if run_id.startswith("demo-")]
    if unfinished and not fresh:
        print(f"demo: going on with {unfinished[-1]}, which was interrupted", flush=True)
        return str(unfinished[-1])
    now = int(time.time())
    conf: dict[str, Any] = {"job_file": JOB_FILE} | ({"rerun": now} if fresh else {})
    if rows := os.environ.get("ROWS"):
        conf["sample_rows"] = _positive(rows)
    run_id = airflow.trigger(DAG, conf, run_id=f"demo-{now}")
    print(f"demo: triggered {DAG} with {conf}: {airflow.url}/dags/{DAG}/runs/{run_id}", flush=True)
    return run_id


def _positive(rows: str) -> int:
    if not rows.isdecimal() or int(rows) < 1:
        raise StackError(f"ROWS={rows}: expected a number of reviews, e.g. ROWS=100")
    return int(rows)


def open_job(job_id: str) -> tuple[Store, Plan]:
    from shardline.plan import read_plan
    from shardline.settings import Settings
    from shardline.store import open_store

    store = open_store(Settings().root)
    return store, read_plan(store, job_id)


def explain_failure(airflow: EmbeddedAirflow, follower: Follower) -> str:
    """Say which tasks failed, with the end of each one's log and where the rest is."""
    job_id = follower.find_job()
    runs = [(DAG, follower.run_id)]
    runs += [(WAVES, r["dag_run_id"]) for r in airflow.api.runs(WAVES) if _is_of(r, job_id)]
    failed = [
        (dag_id, run_id, task)
        for dag_id, run_id in runs
        for task in airflow.api.task_instances(dag_id, run_id)
        if task["state"] == "failed"
    ]
    parts = [_failed_task(airflow, *one) for one in failed[:3]]
    more = [f"and {len(failed) - 3} more failed tasks"] if len(failed) > 3 else []
    advice = "`make up` opens Airflow: clear the failed task there, or mend the cause and run `make demo` again: it goes on where it stopped."
    return "\n\n".join(["the run failed", *parts, *more, advice])


def _is_of(run: Json, job_id: str | None) -> bool:
    return job_id is not None and (run["conf"] or {}).get("job_id") == job_id


def _failed_task(airflow: EmbeddedAirflow, dag_id: str, run_id: str, task: Json) -> str:
    place = (task["task_id"], task["map_index"])
    log = airflow.api.log(dag_id, run_id, *place, task["try_number"])
    folder = airflow.stack.home.logs / "tasks" / f"dag_id={dag_id}" / f"run_id={run_id}"
    said = [line for line in log.splitlines() if "::group::" not in line and "::end" not in line]
    lines = "\n".join(f"    {line}" for line in said[-LOG_LINES:])
    return f"{dag_id} {task_name(task)} failed; the end of its log (all in {folder}):\n{lines}"


def show_results(job_id: str, started_at: str) -> None:
    """Print rows of the published table, the law's figures, and how often the model was right.

    `started_at` is when this demo began, as `plan.timestamp` writes it.
    """
    from shardline.results.files import published_files

    store, plan = open_job(job_id)
    table = plan.job_file.table
    files = published_files(store, table)
    with tempfile.TemporaryDirectory(prefix="shardline-demo-") as scratch:
        copies = _on_disk(store, files, Path(scratch))
        _show(store, plan, files, copies, started_at)


def _on_disk(store: Store, files: list[str], folder: Path) -> list[str]:
    """Paths of the files or of copies: for s3:// DuckDB would download an extension first."""
    paths = []
    for n, file in enumerate(files):
        path = Path(file)
        if "://" in file:
            path = folder / f"{n}.parquet"
            path.write_bytes(store.read(file.removeprefix(f"{store.uri}/")))
        paths.append(str(path))
    return paths


def _show(store: Store, plan: Plan, files: list[str], copies: list[str], started_at: str) -> None:
    from shardline.results.publish import current_publication

    table = plan.job_file.table
    publication = current_publication(store, table, plan.partition)
    assert publication is not None, "the run succeeded, so its table is published"
    if publication.published_at < started_at:
        print(
            f"\ndemo: this job was already done (published {publication.published_at}, inputs and "
            "settings unchanged), so nothing ran again; `make demo FRESH=1` runs it again"
        )
    _print_rows(copies)
    _print_law(publication)
    _print_agreement(copies)
    print(f"\ndataset   {len(files)} files: .venv/bin/shardline files {table}")
    print(f"report    {publication.links['report']}")


def _print_rows(files: list[str]) -> None:
    sample = f"select output, rating, text from labelled using sample {SAMPLE_ROWS}"
    rows = _query(sample, files, CORPUS)
    print(f"\n{'output':10} {'people':>6}  text")
    for output, rating, text in rows:
        print(f"{output or '-':10} {rating:+6.2f}  {text if len(text) < 80 else text[:79] + '…'}")


def _print_law(publication: Publication) -> None:
    law = publication.law
    print(
        f"\nthe law   {law.rows_read:,} rows read = {law.documents:,} documents + "
        f"{law.rejected:,} rejected rows + {law.left_out:,} left out\n"
        f"          {law.documents:,} documents = {law.results:,} results + "
        f"{law.duplicates:,} duplicates + {law.dead_letters:,} dead letters"
    )


def _print_agreement(files: list[str]) -> None:
    found = agreement(files, CORPUS)
    if found.rated:
        print(
            f"\nthe model agrees with people on {found.right:,} of {found.rated:,} rated rows: "
            f"{found.right / found.rated:.1%} (always giving the commoner answer: "
            f"{max(found.positive, found.rated - found.positive) / found.rated:.1%})"
        )


def agreement(files: list[str], corpus: str) -> Agreement:
    """Compare each prediction with the sign of the mean human rating; 0 has none."""
    query = """
        select count(*), count(*) filter ((output = 'positive') = (rating > 0)),
               count(*) filter (rating > 0)
        from labelled where output in ('positive', 'negative') and rating <> 0
    """
    return Agreement(*_query(query, files, corpus)[0])


def _query(query: str, files: list[str], corpus: str) -> list[tuple[Any, ...]]:
    """Ask of the published rows, each beside its text and rating from the corpus."""
    import duckdb

    labelled = """
        with labelled as (
            select p.output, c.rating, c.text
            from read_parquet($files) p join read_json($corpus) c on p.document_id = c.id
        )
    """
    with duckdb.connect() as connection:
        asked = connection.execute(labelled + query, {"files": files, "corpus": corpus})
        return list(asked.fetchall())


def run_demo(stack: Stack) -> None:
    """Raises StackError when the run fails; its message says which task, and shows its log."""
    started, started_at = time.monotonic(), timestamp(datetime.now(UTC))
    prepare()
    with running(stack) as airflow:
        follower = Follower(airflow, start_run(airflow))
        if follower.follow() != "success":
            raise StackError(explain_failure(airflow, follower))
        job_id = follower.find_job()
    show_results(str(job_id), started_at)
    print(f"\ndemo: done in {time.monotonic() - started:.0f} s; `make up` opens Airflow for a look")


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop Airflow then, too
    changes = read_env_file(PROJECT / ".env")
    stack = open_stack()
    os.environ.update(changes)  # the library reads its settings from the environment
    try:
        run_demo(stack)
    except StackError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; `make demo` goes on where it stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
