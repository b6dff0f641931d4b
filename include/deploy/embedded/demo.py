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
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deploy.embedded.__main__ import open_stack, wanted_port
from deploy.embedded.environment import PROJECT
from deploy.embedded.errors import StackError
from deploy.embedded.follower import DAG, Follower
from deploy.embedded.outcome import open_job, publication_of, show_outcome
from deploy.embedded.stack import ENDED, EmbeddedAirflow, Stack
from samples import reviews
from shardline.plan import timestamp

JOB_FILE = "review_sentiment.yaml"


@dataclass(frozen=True)
class Demo:
    """One way to run the demo's job."""

    command: str
    job: Mapping[str, Any]
    """The fields of the trigger form that say which job it is."""
    waves: str
    """The dag in which its shards run."""
    look: str
    """Where a person sees more of it."""
    copies: Path | None = None
    """A folder for copies of what it publishes, where its store ends with it."""


LOCAL = Demo(
    "make demo", {"job_file": JOB_FILE}, "infer_locally", "`make up` opens Airflow for a look"
)


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
def running(stack: Stack, demo: Demo) -> Iterator[EmbeddedAirflow]:
    """Have Airflow up for a block. One that was up before stays up, as with KEEP=1."""
    was_down = stack.up(wanted_port())
    airflow = EmbeddedAirflow(stack)
    try:
        stack.wait_for_dags([DAG, demo.waves])
        yield airflow
    finally:
        airflow.api.close()
        if was_down and not os.environ.get("KEEP"):
            print("demo: stopping Airflow (about 15 s)", flush=True)
            stack.down()


def start_run(airflow: EmbeddedAirflow, demo: Demo) -> str:
    """Trigger the job, or go on with the run that an interrupted demo left."""
    fresh = os.environ.get("FRESH")
    living = [run["dag_run_id"] for run in airflow.api.runs(DAG) if run["state"] not in ENDED]
    unfinished = [run_id for run_id in living if run_id.startswith("demo-")]
    if unfinished and not fresh:
        print(f"demo: going on with {unfinished[-1]}, which was interrupted", flush=True)
        return str(unfinished[-1])
    now = int(time.time())
    changes: dict[str, Any] = {"rerun": now} if fresh else {}
    if rows := os.environ.get("ROWS"):
        changes["sample_rows"] = _positive(rows)
    run_id = airflow.trigger(DAG, {**demo.job, **changes}, run_id=f"demo-{now}")
    with_what = f" with {changes}" if changes else ""
    print(f"demo: triggered {DAG}{with_what}: {airflow.url}/dags/{DAG}/runs/{run_id}", flush=True)
    return run_id


def _positive(rows: str) -> int:
    if not rows.isdecimal() or int(rows) < 1:
        raise StackError(f"ROWS={rows}: expected a number of reviews, e.g. ROWS=100")
    return int(rows)


def run_demo(stack: Stack, demo: Demo) -> None:
    """Raises StackError when the run fails; its message says which task, and shows its log."""
    started, started_at = time.monotonic(), timestamp(datetime.now(UTC))
    prepare()
    with running(stack, demo) as airflow:
        follower = Follower(airflow, start_run(airflow, demo), demo.waves)
        if follower.follow() != "success":
            again = f"mend the cause and run `{demo.command}` again: it goes on where it stopped"
            told = ["the run failed", *follower.failures(), f"{again}; {demo.look}"]
            raise StackError("\n\n".join(told))
        job_id = str(follower.find_job())
    published_at = publication_of(*open_job(job_id)).published_at
    if published_at < started_at:
        print(
            f"\ndemo: this job was already done (published {published_at}, inputs and settings "
            f"unchanged), so nothing ran again; `{demo.command} FRESH=1` runs it again"
        )
    show_outcome(job_id, demo.copies and demo.copies / job_id)
    print(f"\ndemo: done in {time.monotonic() - started:.0f} s; {demo.look}")


def main(demo: Demo = LOCAL) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop Airflow then, too
    try:
        run_demo(open_stack(), demo)
    except StackError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        again = f"`{demo.command}` goes on where it stopped"
        print(f"demo: interrupted; {again}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
