"""shardline replay: run a job's dead letters again, through the stages that any job goes through."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shardline.cli.run_job import run_job
from shardline.cli.summary import rejected_text, root_option, show_published
from shardline.plan import read_plan
from shardline.results.merge import read_merge_report
from shardline.results.open_replay import abandon_replay, open_replay
from shardline.results.publish import current_publication
from shardline.settings import Settings

if TYPE_CHECKING:
    from shardline.cli.screen import Screen
    from shardline.plan import Plan
    from shardline.results.wish import Wish
    from shardline.store import Store


def replay_job(store: Store, plan: Plan, wish: Wish, screen: Screen, *, workers: int) -> None:
    """Open the replay that is meant, or go on with it, and run it to its publication.

    Raises:
        ShardlineError: it is refused, or a stage said no.
    """
    image = Settings().worker_image
    found = open_replay(store, plan, wish, now=datetime.now(UTC), worker_image=image)
    if found is None:
        screen.say(_say_nothing_to_do(store, plan))
        return
    run_job(store, found, screen, workers=workers)
    show_published(store, found, screen)


def give_up(store: Store, plan: Plan, screen: Screen) -> None:
    """Abandon the open replay of a job."""
    found = abandon_replay(store, plan)
    screen.say(f"job {found.job_id}: abandoned; it publishes nothing, and its workers stop")


def _say_nothing_to_do(store: Store, plan: Plan) -> str:
    current = current_publication(store, plan.job_file.table, plan.partition)
    assert current  # else there is nothing to replay, and that is an error
    counts = read_merge_report(store, read_plan(store, current.job_id)).dead_letters
    if not counts:
        return f"job {plan.whole_id}: nothing to replay: every document has a result"
    return (
        f"job {plan.whole_id}: nothing to replay that may do better; dead letters: "
        f"{rejected_text(counts)}; name them with --reason, or change settings with --set; "
        f"`shardline dead-letters {current.job_id}{root_option(store)}` shows them"
    )
