"""Which failures Airflow tries again: decided by the error's class, never by its text.

A retry policy runs in the task's own process. It can fail a task early or change the delay, and it
cannot extend `retries`; so `retries` is a ceiling, and what is charged to a shard is counted from
its attempts (runners.retry).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import RetryDecision, RetryPolicy


class TaskEnded(SystemExit):
    """The end of a task, with one line that says why and was logged before.

    A SystemExit, because Airflow adds a traceback of its own code to every other exception, and
    whoever is on call then looks for the reason in 60 lines. Of this one it logs the line.
    """


class GivenUp(TaskEnded):
    """No retry can help."""


class TryAgain(TaskEnded):
    """Another try goes on from here, after `delay_s`."""

    def __init__(self, line: str, delay_s: float) -> None:
        super().__init__(line)
        self.delay_s = delay_s


class TypedRetryPolicy(RetryPolicy):
    """Do what the class of the error says; what is not ours is retried as the task says."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Any = None
    ) -> RetryDecision:
        if isinstance(exception, GivenUp):
            return RetryDecision.fail()
        if isinstance(exception, TryAgain):
            return RetryDecision.retry(timedelta(seconds=exception.delay_s), str(exception))
        return RetryDecision.default()

    def serialize(self) -> dict[str, Any]:
        return {"__type": type(self).__name__}
