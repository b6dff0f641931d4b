"""The demo's job on the test cluster: Airflow in the cluster's box, an object store that pods reach.

`make demo-cluster` runs it by run.sh. It has an Airflow of its own, beside the one of `make up`.
"""

from __future__ import annotations

import os
import sys

import boto3

from deploy.embedded import demo
from deploy.embedded.environment import PROJECT
from tests.cluster.ground import read_ground
from tests.s3_server import s3_server

BUCKET = "lake"


def main() -> int:
    ground = read_ground()
    home = PROJECT / "var" / "demo-cluster"
    os.environ["SHARDLINE_HOME"] = str(home)
    os.environ["SHARDLINE_ROOT"] = f"s3://{BUCKET}/demo"
    with s3_server(host=ground.host or "127.0.0.1", folder=home / "s3") as env:
        os.environ.update(env)
        store = boto3.client("s3")
        if BUCKET not in [bucket["Name"] for bucket in store.list_buckets()["Buckets"]]:
            store.create_bucket(Bucket=BUCKET)
        return demo.main()


if __name__ == "__main__":
    sys.exit(main())
