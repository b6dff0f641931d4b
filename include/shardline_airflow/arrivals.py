"""Wait for the object that says that a partition's corpus is complete (`corpus.wait_for`).

The providers' own deferrable sensors wait, so that a day of waiting holds no worker. What is added is
the name of the object, which is the job file's and not a template, and a last line that says what to
do. Only a job file that waits imports this: the amazon provider costs a second of every parse.

What it does not do: let a wait that was interrupted by an error keep its time. It begins again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from airflow.providers.amazon.aws.sensors.s3 import S3KeySensor
from airflow.providers.standard.sensors.filesystem import FileSensor
from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowSensorTimeout

from shardline.corpus.plan_job import check_partition
from shardline.errors import PermanentError
from shardline.job import JobFile
from shardline.store import folder_of
from shardline_airflow.retries import GivenUp, TypedRetryPolicy

log = logging.getLogger(__name__)

POKE_S = 60.0
ARRIVAL_RETRIES: dict[str, Any] = {
    # half an hour of a store that does not answer, within a wait of many hours
    "retries": 30,
    "retry_delay": timedelta(minutes=1),
    "retry_policy": TypedRetryPolicy(),
}


def wait_for_corpus(job: JobFile, aws_conn_id: str | None) -> BaseSensorOperator:
    """The task that waits, for a job with `corpus.wait_for`."""
    common = {
        "task_id": "wait_for_corpus",
        "job": job,
        "deferrable": True,
        "poke_interval": POKE_S,
        "timeout": timedelta(hours=job.corpus.wait_hours),
        **ARRIVAL_RETRIES,
    }
    wait_for = job.corpus.wait_for or ""
    if wait_for.startswith("s3://"):
        return WaitForObject(bucket_key=wait_for, aws_conn_id=aws_conn_id, **common)
    return WaitForFile(filepath=wait_for, **common)


class _Arrival(BaseSensorOperator):
    """What both sensors add to their provider's."""

    def __init__(self, *, job: JobFile, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._job = job

    def execute(self, context: Any) -> None:
        with self._clear_last_line(context) as uri:
            log.info("waiting for %s, for %g hours at most", uri, self._job.corpus.wait_hours)
            self._look_for(uri)
            super().execute(context)

    def resume_execution(self, next_method: str, next_kwargs: Any, context: Any) -> Any:
        with self._clear_last_line(context) as uri:
            self._look_for(uri)
            return super().resume_execution(next_method, next_kwargs, context)

    def _look_for(self, uri: str) -> None:
        """Tell the provider's sensor the name for this partition."""
        raise NotImplementedError

    @contextmanager
    def _clear_last_line(self, context: Any) -> Iterator[str]:
        """The object of this run; what nobody can retry ends with one line."""
        try:
            uri = self._uri(context)
            with _refused(uri):
                yield uri
        except AirflowSensorTimeout:
            line = (
                f"corpus.wait_for: {uri} did not come in {self._job.corpus.wait_hours:g} hours; when"
                " it is there, clear this task with what follows it, and the job runs"
            )
            log.error("%s", line)
            raise GivenUp(line) from None
        except PermanentError as error:
            log.error("%s: %s", type(error).__name__, error)
            raise GivenUp(str(error)) from None

    def _uri(self, context: Any) -> str:
        partition = context["dag_run"].partition_key or context["params"].get("partition")
        check_partition(self._job, partition)
        uri = self._job.wait_uri(partition)
        assert uri is not None
        return uri


class WaitForObject(_Arrival, S3KeySensor):
    """The amazon provider's S3KeySensor, for the object of a partition."""

    template_fields = ()  # a name in a bucket is a name: nothing in it is interpreted

    def _look_for(self, uri: str) -> None:
        self.bucket_key = uri


class WaitForFile(_Arrival, FileSensor):
    """The standard provider's FileSensor, for a file that the triggerer sees too."""

    template_fields = ()

    def _look_for(self, uri: str) -> None:
        self.filepath = str(folder_of(uri))

    @property
    def path(self) -> str:  # the provider's asks a connection for a folder
        return str(self.filepath)


@contextmanager
def _refused(uri: str) -> Iterator[None]:
    """Turn an answer that waiting cannot change into a PermanentError, by its class and status."""
    from botocore.exceptions import ClientError, NoCredentialsError

    from shardline.errors import StoreRefused

    try:
        yield
    except NoCredentialsError as error:
        raise StoreRefused(
            f"corpus.wait_for: {uri}: there are no keys; set SHARDLINE_AWS_CONN_ID or AWS_*"
        ) from error
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status not in (401, 403):
            raise
        raise StoreRefused(
            f"corpus.wait_for: {uri}: the store refuses (status {status}): wrong keys, no permission,"
            " or no such object and no permission to list"
        ) from error
