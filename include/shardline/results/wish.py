"""What somebody asks to be run again: which dead letters, and with which settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardline.errors import FieldProblem, JobFileError, WrongInput
from shardline.job import JobFile
from shardline.job_reader import change_job
from shardline.reasons import DeadLetterReason

if TYPE_CHECKING:
    from shardline.plan import Plan

CHANGEABLE = (
    "parameters",
    "output.truncated",
    "run_on",
    "local",
    "gpu",
    "shards",
    "limits.max_dead",
    "limits.partial",
)
"""What a replay may set otherwise: how a request is run, never what is asked or published."""


@dataclass(frozen=True)
class Wish:
    """What somebody asks to be run again.

    Without reasons it is all that can be replayed, and with other settings all there is.
    """

    reasons: tuple[str, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Dotted fields of the job file with their new values."""
    folder: Path = Path()
    """Where relative paths of a model start."""


def changed_job(parent: Plan, wish: Wish) -> JobFile:
    """The parent's job file with the settings of the replay.

    Raises:
        WrongInput: an unknown reason.
        JobFileError: a field that a replay cannot change, or a value that it cannot have.
    """
    known = {reason.value for reason in DeadLetterReason}
    if unknown := sorted(set(wish.reasons) - known):
        raise WrongInput(
            f"{unknown[0]}: no reason of a dead letter; there are: {', '.join(sorted(known))}"
        )
    problems = [
        FieldProblem(name, f"a replay cannot change it; it can: {', '.join(CHANGEABLE)}")
        for name in wish.changes
        if not any(name == may or name.startswith(f"{may}.") for may in CHANGEABLE)
    ]
    where = f"replay of {parent.job_id}"
    if problems:
        raise JobFileError(where, problems)
    return change_job(parent.job_file, wish.changes, folder=wish.folder.absolute(), where=where)


def chosen_reasons(parent: Plan, job: JobFile, wish: Wish) -> list[str]:
    """The reasons that are run: those that are named, else all that may do better this time."""
    if wish.reasons:
        return sorted(set(wish.reasons))
    is_other = _settings(job) != _settings(parent.job_file)
    return sorted(reason.value for reason in DeadLetterReason if is_other or reason.can_replay)


def _settings(job: JobFile) -> tuple[Any, ...]:
    """What may give a request another end."""
    return job.parameters, job.output, job.run_on, job.engine
