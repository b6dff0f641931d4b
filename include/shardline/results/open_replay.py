"""open_replay: number a replay, and fix what it runs again and with which settings.

PROTOCOL 19. The put of the number opens it, and holds the whole plan: whoever comes again with the
same wish goes on with the one that is open, and with another wish is refused. It is open until it is
published or abandoned. It starts from what readers see now, which must be the job itself or one of
its replays; publishing is refused when that is no longer so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from shardline import __version__
from shardline.errors import JobNotReady, ReplayRefused
from shardline.images import pin_image
from shardline.job import JobFile
from shardline.layout import NO_PARTITION, replay_id
from shardline.models import pin_model
from shardline.plan import Plan, Replay, encode_plan, read_plan, timestamp
from shardline.results.chain import Chain, dead_names
from shardline.results.cut_replay import say_gone
from shardline.results.delta import open_table
from shardline.results.merge import MergeReport, read_merge_report
from shardline.results.publish import current_publication
from shardline.results.wish import Wish, changed_job, chosen_reasons
from shardline.runners.generations import cancel_generation, current_generation
from shardline.store import Put

if TYPE_CHECKING:
    from shardline.store import Store

log = logging.getLogger(__name__)


def open_replay(
    store: Store,
    plan: Plan,
    wish: Wish,
    *,
    now: datetime,
    opened_by: str = "",
    worker_image: str | None = None,
) -> Plan | None:
    """The replay of a job (or of a replay's parent) that this wish means; None: nothing to replay.

    Args:
        opened_by: a name of the run that asks; the same run gets the same replay for ever.
        worker_image: of the deployment, for a replay in pods of a job that ran in none.

    Raises:
        WrongInput: an unknown reason; a replay in pods without an image for them. JobFileError: a field that a replay cannot change.
        ReplayRefused: another replay is open, this one was given up, another job is current, or
            what it needs is gone.
        JobNotReady: nothing of the job is published.
        ModelNotFound: no such model.
    """
    parent = read_plan(store, plan.whole_id)
    job = changed_job(parent, wish)
    known = list_replays(store, parent)
    mine = [p for p in known if opened_by and p.replay and p.replay.opened_by == opened_by]
    if mine:
        return _opened(store, mine[-1])
    reasons = chosen_reasons(parent, job, wish)
    if (still_open := find_open(store, known)) is not None:
        return _opened(store, _same(parent, still_open, reasons, wish))
    base = _read_base(store, parent)
    if not _is_something_left(store, base, reasons):
        return None
    _check_kept(store, parent)
    image = parent.worker_image if job.run_on == "gpu" else None
    image = image or pin_image(job, worker_image)
    made = _plan(parent, base, job, image, len(known) + 1, reasons, wish, now, opened_by)
    content = encode_plan(made)
    if store.put_once(parent.layout.replay(len(known) + 1), content) is Put.TAKEN:
        winner = list_replays(store, parent)[len(known)]
        made = _same(parent, winner, reasons, wish)
    log.info("job %s: replay of %s, reasons %s", made.job_id, parent.job_id, ", ".join(reasons))
    return _opened(store, made)


def abandon_replay(store: Store, plan: Plan) -> Plan:
    """Give up the open replay of a job: it publishes no more, and its workers stop.

    Raises:
        ReplayRefused: none is open.
    """
    found = find_open(store, list_replays(store, read_plan(store, plan.whole_id)))
    if found is None:
        raise ReplayRefused(f"job {plan.whole_id}: no replay is open")
    store.put_once(found.layout.abandoned, b"abandoned")
    if generation := current_generation(store, found.job_id):
        cancel_generation(store, found.job_id, generation, "abandoned")
    return found


def list_replays(store: Store, parent: Plan) -> list[Plan]:
    """The replays of a job by number, open or not."""
    paths = [found.path for found in store.list(parent.layout.replays)]
    plans = [msgspec.json.decode(store.read(path), type=Plan) for path in paths]
    return sorted(plans, key=lambda found: found.replay.n if found.replay else 0)


def find_open(store: Store, replays: Iterable[Plan]) -> Plan | None:
    """The one that is neither published nor abandoned; there is one at most."""
    for plan in replays:
        table = open_table(store, plan.job_file.table)
        is_published = table is not None and table.transaction_version(plan.job_id) is not None
        if not is_published and not store.exists(plan.layout.abandoned):
            return plan
    return None


def _same(parent: Plan, found: Plan, reasons: list[str], wish: Wish) -> Plan:
    """The replay that is open, if it is the one that is asked for."""
    assert found.replay
    if (found.replay.reasons, found.replay.changes) == (reasons, _as_json(wish.changes)):
        return found
    raise ReplayRefused(
        f"job {parent.job_id}: another replay is open, {found.job_id} since {found.planned_at}: "
        f"`shardline resume {found.job_id}` finishes it, "
        f"`shardline replay {parent.job_id} --abandon` gives it up"
    )


def _as_json(changes: Mapping[str, Any]) -> dict[str, Any]:
    """As they are read back: YAML has keys and dates that JSON writes as strings."""
    return msgspec.json.decode(msgspec.json.encode(dict(changes)), type=dict[str, Any])


def _opened(store: Store, plan: Plan) -> Plan:
    """The replay as a job: whoever opened it may have died before this put."""
    if store.exists(plan.layout.abandoned):
        raise ReplayRefused(f"job {plan.job_id}: this replay was abandoned")
    store.put_same(plan.layout.plan, encode_plan(plan))
    return read_plan(store, plan.job_id)


def _read_base(store: Store, parent: Plan) -> Plan:
    table, partition = parent.job_file.table, parent.partition or NO_PARTITION
    current = current_publication(store, table, partition)
    if current is None:
        raise JobNotReady(
            f"job {parent.job_id}: nothing of it is published, so there is nothing to replay; "
            f"`shardline resume {parent.job_id}` goes on with the job itself"
        )
    if parent.job_id not in (current.job_id, current.parent):
        raise ReplayRefused(
            f"job {parent.job_id}: superseded by {current.job_id}; a replay would bring it back"
        )
    return read_plan(store, current.job_id)


def _is_something_left(store: Store, base: Plan, reasons: list[str]) -> bool:
    report = read_merge_report(store, base)
    if any(report.dead_letters.get(reason) for reason in reasons):
        return True
    return bool(report.dead_letters) and _has_late_results(store, base, report)


def _has_late_results(store: Store, base: Plan, report: MergeReport) -> bool:
    chain = Chain(store, base)
    for number, merged in enumerate(report.shards):
        if merged.dead_letters:
            names = dead_names(chain.read(number).results.ended)
            if chain.late_lines(number, names):
                return True
    return False


def _check_kept(store: Store, parent: Plan) -> None:
    """Refuse a replay whose parent was cleaned up, before a number is taken for it."""
    layout = parent.layout
    shards = [merged.shard for merged in read_merge_report(store, parent).shards]
    for prefix, name in (
        (layout.ledgers_prefix, layout.ledger),
        (layout.shards_prefix, layout.shard),
        (layout.results_prefix, layout.results),
    ):
        kept = {found.path for found in store.list(prefix)}
        gone = [name(shard) for shard in shards if name(shard) not in kept]
        if gone:
            raise ReplayRefused(say_gone(parent.job_id, gone[0]))


def _plan(
    parent: Plan,
    base: Plan,
    job: JobFile,
    image: str | None,
    n: int,
    reasons: list[str],
    wish: Wish,
    now: datetime,
    opened_by: str,
) -> Plan:
    is_same_model = job.engine.model_copy(update={"engine_args": {}}) == (
        parent.job_file.engine.model_copy(update={"engine_args": {}})
    )
    return msgspec.structs.replace(
        parent,
        job_id=replay_id(parent.job_id, n),
        job=job.model_dump(mode="json"),
        planned_at=timestamp(now),
        model_commit=parent.model_commit if is_same_model else pin_model(job.engine),
        version=__version__,
        worker_image=image,
        replay=Replay(
            parent=parent.job_id,
            n=n,
            base=base.job_id,
            reasons=reasons,
            changes=_as_json(wish.changes),
            parent_planned_at=parent.planned_at,
            opened_by=opened_by,
        ),
    )
