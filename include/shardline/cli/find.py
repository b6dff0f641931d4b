"""Which job a user means: by its id, or by its name, which means the job that was planned last."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import yaml

from shardline.errors import FieldProblem, JobFileError, JobNotReady, WrongInput
from shardline.layout import SLUG
from shardline.plan import read_plan

if TYPE_CHECKING:
    from shardline.plan import Plan
    from shardline.store import Store

_JOBS = "jobs/"
_ID = re.compile(r"(?P<name>.+)-[0-9a-f]{8}")


def find_job(store: Store, job: str) -> Plan:
    """The plan of a job id, or of the newest job of that name.

    Raises:
        WrongInput: there is none below this root.
    """
    if not SLUG.fullmatch(job):
        raise WrongInput(
            f"{job}: expected the id or the name of a job (a-z, 0-9 and dashes); "
            "`shardline jobs` lists those that there are"
        )
    ids = store.folders(_JOBS)
    if job in ids:
        return read_plan(store, job)
    named = (plan for plan in _plans(store, ids, job) if plan.job["name"] == job)
    if found := [plan for plan in named if not _is_abandoned(store, plan)]:
        return max(found, key=lambda plan: (plan.planned_at, plan.job_id))
    names = {m["name"] for i in ids if (m := _ID.fullmatch(i))} | set(ids)
    near = difflib.get_close_matches(job, sorted(names), n=1)
    hint = f"did you mean {near[0]}?" if near else "`shardline jobs` lists those that there are"
    raise WrongInput(f"no job {job} below {store.uri}; {hint}")


def _is_abandoned(store: Store, plan: Plan) -> bool:
    return plan.replay is not None and store.exists(plan.layout.abandoned)


def list_jobs(store: Store) -> list[Plan]:
    """All jobs below the root, the newest first."""
    plans = _plans(store, store.folders(_JOBS), "")
    return sorted(plans, key=lambda plan: (plan.planned_at, plan.job_id), reverse=True)


def _plans(store: Store, ids: tuple[str, ...], prefix: str) -> Iterator[Plan]:
    for job_id in ids:
        if job_id.startswith(prefix):
            try:
                yield read_plan(store, job_id)
            except JobNotReady:  # a folder that a planning process left when it was killed
                continue


def parse_overrides(given: list[str]) -> Mapping[str, Any]:
    """`--set a.b=c` as fields; values are read as YAML, so 3 is a number and [a, b] a list.

    Raises:
        JobFileError: no field or no `=`.
    """
    fields: dict[str, Any] = {}
    for text in given:
        field, equals, value = text.partition("=")
        if not equals or not field.strip(". "):
            raise JobFileError("--set", [FieldProblem("", f"expected FIELD=VALUE, found {text!r}")])
        fields[field.strip()] = _scalar(value)
    return fields


def _scalar(value: str) -> Any:
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError:  # `@daily` and `{{ text }}` are no YAML, and mean what they say
        return value
