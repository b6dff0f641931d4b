"""Which job a user means, and what `--set` means."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shardline.cli.find import find_job, list_jobs, parse_overrides
from shardline.errors import JobFileError, WrongInput
from shardline.plan import Plan, encode_plan
from shardline.store import Store
from tests.factories import make_job, make_store


def put_plan(store: Store, folder: Path, name: str, digest: str, planned_at: str) -> Plan:
    job = make_job(folder, name=name)
    plan = Plan(
        f"{name}-all-{digest}", job.model_dump(mode="json"), None, planned_at, "stub",
        [], [], [], [], [], "0",
    )  # fmt: skip
    store.put_same(plan.layout.plan, encode_plan(plan))
    return plan


def test_a_name_means_its_newest_job(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    old = put_plan(store, tmp_path, "reviews", "00000001", "2026-11-01T00:00:00+00:00")
    new = put_plan(store, tmp_path, "reviews", "00000002", "2026-11-02T00:00:00+00:00")
    put_plan(store, tmp_path, "reviews-long", "00000003", "2026-11-03T00:00:00+00:00")
    assert find_job(store, "reviews").job_id == new.job_id
    assert find_job(store, old.job_id).job_id == old.job_id
    assert [p.job["name"] for p in list_jobs(store)] == ["reviews-long", "reviews", "reviews"]


def test_a_name_that_is_nearly_right_is_suggested(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    plan = put_plan(store, tmp_path, "reviews", "00000001", "2026-11-01T00:00:00+00:00")
    with pytest.raises(WrongInput, match=f"no job reviews-all-0000000f .*{plan.job_id}"):
        find_job(store, "reviews-all-0000000f")


@pytest.mark.protocol(24)
@pytest.mark.parametrize("job", ["../etc", "a/b", "A", ""])
def test_a_job_that_is_no_slug_never_becomes_a_path(tmp_path: Path, job: str) -> None:
    with pytest.raises(WrongInput, match="expected the id or the name"):
        find_job(make_store(tmp_path), job)


def test_a_folder_without_a_plan_is_no_job(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.write("jobs/reviews-all-00000001/progress/x.json", b"{}")
    assert list_jobs(store) == []


def test_values_are_yaml_and_fields_are_dotted() -> None:
    given = ["a.b=3", "c=[x, y]", "d=true", "e=", "f=a=b", "schedule=@daily", "t={{ text }}"]
    assert parse_overrides(given) == {
        "a.b": 3, "c": ["x", "y"], "d": True, "e": None, "f": "a=b",
        "schedule": "@daily", "t": "{{ text }}",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["novalue", "=3", ".=3"])
def test_an_override_without_a_field_is_refused(text: str) -> None:
    with pytest.raises(JobFileError, match="FIELD=VALUE"):
        parse_overrides([text])


def test_plans_survive_their_encoding(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    plan = put_plan(store, tmp_path, "reviews", "00000001", "2026-11-01T00:00:00+00:00")
    assert msgspec.json.decode(store.read(plan.layout.plan), type=Plan) == plan
