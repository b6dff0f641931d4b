"""shardline try: a few documents through the real engine, shown with what it was asked.

Works in a folder of its own that goes away, through the same stages as a run: what looks right
here is what a run will do.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from shardline.cli.run_job import prepare_job
from shardline.cli.run_shards import ShardLoop, Stopper
from shardline.errors import JobNotReady, WrongInput
from shardline.report.samples import answer_text, last_text
from shardline.rows import RejectedRow, Request, Result
from shardline.shards.manifest import read_shards
from shardline.status.words import count_text
from shardline.store import open_store

if TYPE_CHECKING:
    from shardline.cli.screen import Screen
    from shardline.job import JobFile
    from shardline.plan import Plan
    from shardline.settings import Settings
    from shardline.store import Store

_SHOWN_REJECTED = 3
_SHOWN_LOG_LINES = 40


def try_job(job: JobFile, settings: Settings, partition: str | None, screen: Screen) -> None:
    """Run the sample of a job whose `corpus.sample` is set, and show every answer.

    Raises:
        WrongInput: no row of the corpus is a document.
    """
    from shardline.corpus.plan_job import plan_job

    with tempfile.TemporaryDirectory(prefix="shardline-try-") as folder:
        store = open_store(folder)
        now = datetime.now(UTC)
        plan = plan_job(job, store=store, settings=settings, partition=partition, now=now)
        prepare_job(store, plan, screen)
        shards = read_shards(store, plan)
        if not shards:
            raise WrongInput(f"no row is a document: {_rejected_text(store, plan)}")
        with Stopper() as stopper:
            ShardLoop(store, plan, screen, stopper, 1).run()
        for entry in shards:
            _show_shard(store, plan, entry.shard, screen)
        if text := _rejected_text(store, plan):
            screen.say(f"rejected: {text}")
    screen.say("nothing was published; `shardline run JOBFILE` runs all of it")


def _show_shard(store: Store, plan: Plan, shard: str, screen: Screen) -> None:
    found = store.read_or_none(plan.layout.results(shard))
    if found is None:
        raise JobNotReady(f"the model gave no answer.{_log_tail(store, plan, shard)}")
    lines = found.splitlines()
    results = {r.custom_id: r for r in (msgspec.json.decode(x, type=Result) for x in lines)}
    for line in store.read(plan.layout.shard(shard)).splitlines():
        request = msgspec.json.decode(line, type=Request)
        _show(plan.job_file, request, results.get(request.custom_id), screen)


def _log_tail(store: Store, plan: Plan, shard: str) -> str:
    """The end of the last worker's log: this folder, and the log in it, goes away."""
    logs = [o.path for o in store.list(f"{plan.layout.prefix}logs/{shard}/")]
    if not logs:
        return ""
    lines = store.read(logs[-1]).decode(errors="replace").splitlines()
    print("\n".join(lines[-_SHOWN_LOG_LINES:]), file=sys.stderr)
    return " The end of its worker's log stands above"


def _show(job: JobFile, request: Request, result: Result | None, screen: Screen) -> None:
    asked = _asked(request.body)
    answer, style = _answer(job, result)
    if not screen.is_terminal:
        screen.say(f"---\n{asked}\n=> {answer}")
        return
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    side_by_side = Table.grid(padding=(0, 2), expand=True)
    side_by_side.add_column(ratio=3)
    side_by_side.add_column(ratio=2)
    side_by_side.add_row(Text(asked), Text(answer, style=style))
    screen.console.print(Panel(side_by_side, border_style="dim"))


def _asked(body: dict[str, Any]) -> str:
    if "messages" in body:
        return "\n".join(f"{m['role']}: {m['content']}" for m in body["messages"])
    return last_text(body)


def _answer(job: JobFile, result: Result | None) -> tuple[str, str]:
    """What the model said, or why it said nothing; and a style for it."""
    if result is None:
        return "(no result)", "red"
    if result.response is None:
        error = result.error
        return (f"dead letter {error.code}: {error.message}" if error else "(no result)"), "red"
    body: dict[str, Any] = result.response.body
    is_cut = any(answer.get("finish_reason") == "length" for answer in body.get("choices", []))
    return answer_text(job, body) + (" (cut at max_tokens)" if is_cut else ""), "bold green"


def _rejected_text(store: Store, plan: Plan) -> str:
    """How many rows of the corpus are no documents, with the first few."""
    rows: list[RejectedRow] = []
    for path in [plan.layout.rejected(s) for s in range(len(plan.splits))]:
        lines = (store.read_or_none(path) or b"").splitlines()
        rows += [msgspec.json.decode(line, type=RejectedRow) for line in lines]
    if not rows:
        return ""
    shown = [f"{r.source} row {r.row}: {r.reason}" for r in rows[:_SHOWN_REJECTED]]
    more = ", …" if len(rows) > _SHOWN_REJECTED else ""
    return f"{count_text(len(rows), 'row')} ({', '.join(shown)}{more})"
