"""The keys of s3:// from an Airflow connection, where the deployment names one (SHARDLINE_AWS_CONN_ID).

How it works: a task's process asks the amazon provider once. Stores get a function that hands out
the keys of the moment, since those of a role are renewed while a task runs. The environment of the
process gets them too: that is how a local worker, which is its child, has them.

What it does not do: give anything to a pod. A pod has its own identity (a service account).

Known limitation: a local worker keeps the keys of its start. Those of a role last an hour or more;
an attempt that outlives them ends as one that cannot reach the store, and the next has new ones.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from shardline.errors import WrongInput
from shardline.settings import Settings
from shardline.store import Store, open_store, use_s3_keys

if TYPE_CHECKING:
    from obstore.store import S3Credential

_ASKED_AGAIN = timedelta(minutes=5)
"""The provider renews keys a quarter of an hour before they end."""


def open_root(settings: Settings) -> Store:
    """The deployment's store. Every task opens it here, and then reaches every other bucket too.

    Raises:
        WrongInput: there is no such connection, or it leads to no keys.
    """
    if settings.aws_conn_id:
        reach_buckets(settings.aws_conn_id)
    return open_store(settings.root)


def reach_buckets(conn_id: str) -> None:
    """Let this process, and those that it starts, use the keys of an Airflow connection."""
    hook = _hook(conn_id)
    credentials = hook.get_session().get_credentials()
    if credentials is None:
        raise WrongInput(
            f"SHARDLINE_AWS_CONN_ID: the connection {conn_id} has no keys, and this machine no role"
        )

    def keys() -> S3Credential:
        now = credentials.get_frozen_credentials()
        hide(now.secret_key, now.token)
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": datetime.now(UTC) + _ASKED_AGAIN,
        }

    use_s3_keys(keys)
    found = {
        "AWS_ACCESS_KEY_ID": keys()["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": keys()["secret_access_key"],
        "AWS_SESSION_TOKEN": keys()["token"],
        "AWS_REGION": hook.region_name,
        "AWS_DEFAULT_REGION": hook.region_name,
        "AWS_ENDPOINT_URL": hook.conn_config.get_service_endpoint_url("s3"),
    }
    for name, value in found.items():
        if value:
            os.environ[name] = value
        elif name == "AWS_SESSION_TOKEN":  # one of other keys would spoil these
            os.environ.pop(name, None)


def hide(*secrets: str | None) -> None:
    """Have Airflow print *** for these wherever a log would show them."""
    from airflow.sdk.log import mask_secret

    for secret in secrets:
        if secret:
            mask_secret(secret)


def _hook(conn_id: str) -> Any:
    from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:  # the provider would warn, and go on with whatever keys the machine has
        BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise WrongInput(
            f"SHARDLINE_AWS_CONN_ID: there is no Airflow connection {conn_id}"
        ) from error
    return AwsBaseHook(aws_conn_id=conn_id, client_type="s3")
