"""What can go wrong with the embedded Airflow, told to the person who started it.

StackError              the message says what happened and what to do
└── ApiError            Airflow's API refused a request; carries the status
"""


class StackError(Exception):
    """Something that a person must look at; the message is complete."""


class ApiError(StackError):
    """An answer of Airflow's API that is no success."""

    def __init__(self, request: str, status: int, body: str) -> None:
        super().__init__(f"{request}: {status} {body[:2_000]}")
        self.status = status
