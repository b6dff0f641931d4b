"""What stages do when the store does not answer: they sit an outage out, as workers do."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from shardline.disk import local_disk
from shardline.errors import SickMachine, StoreUnavailable
from shardline.store import Store, open_store
from shardline_airflow import stages
from shardline_airflow.retries import GivenUp
from tests.factories import make_rows
from tests.results.answers import small_job

pytestmark = pytest.mark.protocol(11)


class Away(Store):
    """The store of a folder that does not answer the first reads."""

    left = 0
    error: type[OSError] = ConnectionResetError

    def __init__(self, uri: str) -> None:
        plain = open_store(uri)
        super().__init__(plain.uri, plain._objects, plain.folder)

    def _do_read(self, path: str) -> bytes:
        if Away.left:
            Away.left -= 1
            raise Away.error("the store is away")
        return super()._do_read(path)


@pytest.fixture
def job_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    store, plan = small_job(tmp_path, make_rows(3), shards__max_requests=1)
    monkeypatch.setenv("SHARDLINE_ROOT", store.uri)
    monkeypatch.setattr("shardline_airflow.buckets.open_store", Away)
    monkeypatch.setattr(Away, "left", 0)
    monkeypatch.setattr("shardline.patience._LONGEST_PAUSE_S", 0.001)
    return plan.job_id


@pytest.mark.parametrize("error", [ConnectionResetError, PermissionError])
def test_a_stage_sits_out_an_outage_and_keys_that_are_just_being_renewed(
    job_id: str,
    error: type[OSError],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Away, "error", error)
    Away.left = 20
    assert stages.unfinished_shards(job_id, 0, 3, 1) == [0, 1, 2]
    assert "store: waiting for it" in caplog.text


def test_an_outage_that_does_not_end_is_left_to_airflow(
    job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardline_airflow.stages.PATIENCE_S", 0.05)
    Away.left = 1_000
    with pytest.raises(StoreUnavailable):
        stages.unfinished_shards(job_id, 0, 3, 1)
    assert 0 < Away.left < 1_000


def test_an_object_that_is_gone_is_not_waited_for(
    job_id: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardline_airflow.stages.PATIENCE_S", 0.05)
    store, plan = stages.open_job(job_id)
    store.delete(plan.layout.shard_table)
    with pytest.raises(GivenUp, match="no such object"):
        stages.unfinished_shards(job_id, 0, 3, 1)
    assert "waiting for it" not in caplog.text


def test_each_outage_of_a_stage_that_works_in_between_is_sat_out_for_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shardline.patience._LONGEST_PAUSE_S", 0.02)
    monkeypatch.setattr("shardline_airflow.stages.PATIENCE_S", 0.03)
    outages = iter(range(10))

    @stages.sits_out
    def live_for_days() -> str:
        time.sleep(0.04)
        if next(outages, None) is not None:
            raise StoreUnavailable("away")
        return "done"

    assert live_for_days() == "done"
    outages = iter(range(1_000))
    with pytest.raises(StoreUnavailable):  # the same end of each try is no outage
        live_for_days()
    assert next(outages) == stages.MAX_OUTAGES + 1


def test_a_full_disk_is_left_to_a_try_on_another_machine() -> None:
    @stages.gives_up
    def fetch() -> None:
        with local_disk(Path("/dev")):
            Path("/dev/full").write_bytes(b"x")

    with pytest.raises(SickMachine, match="No space left on device"):
        fetch()
