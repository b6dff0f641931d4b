"""A scheduled job whose input, shards and table are in a bucket, on a real Airflow.

The keys stand in an Airflow connection and nowhere else: stages, the sensor in the triggerer and the
worker below its task all have them from there.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from deploy.embedded.stack import EmbeddedAirflow, embedded_airflow
from tests.factories import make_rows
from tests.s3_server import KEY, SECRET, s3_server
from tests.waits import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DAY = "2026-11-05"
JOB = {
    "name": "arrivals",
    "corpus": {
        "uri": "s3://lake/in/dt={{ partition }}/*.jsonl",
        "wait_for": "s3://lake/in/dt={{ partition }}/_SUCCESS",
        "id": "id",
    },
    "messages": [{"role": "user", "content": "{{ text }}"}],
    "local": {"model": "stub", "engine": "stub"},
    "schedule": "@daily",
}


@pytest.fixture(scope="module")
def lake() -> Iterator[tuple[Any, str]]:
    with s3_server() as environment:
        endpoint = environment["AWS_ENDPOINT_URL"]
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="lake")
        yield client, endpoint
        client.close()


@pytest.fixture(scope="module")
def airflow(lake: tuple[Any, str]) -> Iterator[EmbeddedAirflow]:
    connection = {
        "conn_type": "aws",
        "login": KEY,
        "password": SECRET,
        "extra": {"endpoint_url": lake[1], "region_name": "us-east-1"},
    }
    with (
        tempfile.TemporaryDirectory(prefix="shardline-house-") as name,
        pytest.MonkeyPatch.context() as patch,
    ):
        for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
            patch.delenv(variable, raising=False)
        folder = Path(name)
        (folder / "jobs").mkdir()
        (folder / "jobs/arrivals.yaml").write_text(json.dumps(JOB))  # JSON is YAML
        changes = {
            "AIRFLOW_CONN_LAKE": json.dumps(connection),
            "AWS_EC2_METADATA_DISABLED": "true",
            "SHARDLINE_AWS_CONN_ID": "lake",
            "SHARDLINE_ROOT": "s3://lake/root",
            "SHARDLINE_JOBS_DIR": str(folder / "jobs"),
        }
        dags = ("arrivals", "infer_locally")
        with embedded_airflow(folder / "home", env=changes, dags=dags, pools={"local": 1}) as up:
            yield up


def test_a_date_is_worked_on_when_its_input_is_complete(
    lake: tuple[Any, str], airflow: EmbeddedAirflow
) -> None:
    bucket = lake[0]
    airflow.api.request("PATCH", "dags/arrivals", json={"is_paused": False})
    run_id = airflow.trigger("arrivals", partition_key=DAY)
    until(
        "deferral",
        lambda: airflow.task_states("arrivals", run_id).get("wait_for_corpus") == "deferred",
        200,
    )
    rows = "".join(json.dumps(row) + "\n" for row in make_rows(7))
    bucket.put_object(Bucket="lake", Key=f"in/dt={DAY}/a.jsonl", Body=rows.encode())
    bucket.put_object(Bucket="lake", Key=f"in/dt={DAY}/_SUCCESS", Body=b"")
    state = airflow.wait("arrivals", run_id, 400)
    states = airflow.task_states("arrivals", run_id)
    assert state == "success", states
    assert "7 rows" in airflow.logs("arrivals", run_id, "check_outcome")
    listed = bucket.list_objects_v2(Bucket="lake", Prefix="root/published/arrivals/")
    assert [o["Key"] for o in listed["Contents"] if o["Key"].endswith(".parquet")]
    for task, index in (("wait_for_corpus", -1), ("plan_job", -1), ("scan_corpus", 0)):
        assert SECRET not in airflow.logs("arrivals", run_id, task, index)
