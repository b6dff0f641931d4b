"""The last lines of a run: where the dataset is, whether the law held, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shardline.layout import NO_PARTITION, published
from shardline.plan import read_plan
from shardline.results.merge import read_merge_report
from shardline.results.outcome import say_replay
from shardline.results.publish import current_publication, is_followed
from shardline.rows import Law
from shardline.settings import Settings
from shardline.store import folder_of

if TYPE_CHECKING:
    from shardline.cli.screen import Screen
    from shardline.plan import Plan
    from shardline.store import Store


def show_published(store: Store, plan: Plan, screen: Screen) -> None:
    """Say what was published, and the commands that look at it."""
    job, partition = plan.job_file, plan.partition or NO_PARTITION
    current = current_publication(store, job.table, partition)
    if current is not None and is_followed(plan, current):
        plan = read_plan(store, current.job_id)
    merged = read_merge_report(store, plan)
    screen.say("")
    screen.say(f"  table   {store.uri_of(published(job.table))}  (partition dt={partition})")
    screen.say(f"  rows    {merged.rows:,} in {len(merged.files):,} files")
    for i, equation in enumerate(law_lines(merged.law)):
        screen.say(f"  {'law' if i == 0 else '':7} {equation}")
    screen.say(f"  report  {shown_path(store, plan.layout.report_html)}")
    screen.say("")
    root = root_option(store)
    screen.say("next:")
    screen.say(f"  shardline files {job.table}{root}    # its files, for pandas, Polars, DuckDB")
    screen.say(f"  shardline verify {plan.job_id}{root}    # counts the law again")
    if merged.dead_letters:
        again = say_replay(plan.whole_id, merged.dead_letters, root).strip("`")
        screen.say(f"  shardline dead-letters {plan.job_id}{root}    # what has no result, and why")
        screen.say(f"  {again}    # runs them again")


def root_option(store: Store) -> str:
    """` --root URI` for a command to repeat, or nothing where the settings say the same."""
    usual = Settings().root
    folder = folder_of(usual)
    same = store.uri == (folder.as_uri() if folder is not None else usual.rstrip("/"))
    return "" if same else f" --root {store.uri}"


def law_lines(law: Law) -> list[str]:
    """The two equations with their numbers."""
    return [
        f"{law.rows_read:,} rows read = {law.documents:,} documents + {law.rejected:,} rejected"
        f" + {law.left_out:,} left out",
        f"{law.documents:,} documents = {law.results:,} results + {law.duplicates:,} duplicates"
        f" + {law.dead_letters:,} dead letters",
    ]


def rejected_text(reasons: Mapping[str, int]) -> str:
    """`30 bad_json, 6 no_text`, the most frequent first."""
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{n:,} {reason}" for reason, n in ranked if n)


def shown_path(store: Store, path: str) -> str:
    """A path on disk, which a terminal can open, or the object's URI."""
    return str(store.folder / path) if store.folder is not None else store.uri_of(path)
