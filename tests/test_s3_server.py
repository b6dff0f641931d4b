"""The S3 server of the tests, where it is more than a process that answers."""

from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tests.s3_server import s3_server


def client(env: dict[str, str]) -> Any:
    """One that asks once: what the server does wrong is not hidden by asking again."""
    return boto3.client(
        "s3",
        endpoint_url=env["AWS_ENDPOINT_URL"],
        aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
        region_name=env["AWS_REGION"],
        config=Config(retries={"total_max_attempts": 1}),
    )


@pytest.mark.slow
def test_what_a_folder_holds_is_read_as_soon_as_the_server_is_up_again(tmp_path: Path) -> None:
    with s3_server(folder=tmp_path) as env:
        client(env).create_bucket(Bucket="lake")
        client(env).put_object(Bucket="lake", Key="a", Body=b"x" * 100_000)
    with s3_server(folder=tmp_path) as env:
        found = client(env).get_object(Bucket="lake", Key="a")
        assert found["Body"].read() == b"x" * 100_000
