"""Every error Shardline raises, in one tree. The class decides what happens next, never the text.

    ShardlineError
    ├── PermanentError            trying again changes nothing
    │   ├── WrongInput            what the user gave is wrong: exit 2, no retry
    │   │   ├── JobFileError      a field of the job file, with what was expected
    │   │   ├── CorpusError       a file of the corpus that cannot be read to its end, or none at all
    │   │   ├── ModelNotFound     no such model, revision or folder
    │   │   └── NotAllowed        a path or an option outside its allow-list
    │   ├── NotYet                a part of the job file that this version cannot run
    │   ├── LawBroken             rows are missing or doubled; nothing may be published
    │   ├── LimitExceeded         max_rejected or max_dead
    │   ├── JobNotReady           a stage was asked for before the one it reads from has ended
    │   ├── ValidationFailed      the Great Expectations gate said no
    │   ├── Superseded            another job's data is current in this partition
    │   ├── ReplayRefused         another replay is open, its base is replaced, or what it reads is gone
    │   ├── Cancelled             somebody put a cancel marker
    │   ├── ObjectConflict        an object that is written once holds other bytes
    │   ├── SickMachine           a disk of this machine that is full, broken or may not be written
    │   └── StoreRefused          no permission, bad key, no such bucket, a folder that cannot be written
    └── TransientError            the same call may succeed later
        ├── StoreUnavailable      the object store did not answer, or said "later"
        ├── CommitConflict        another publisher committed first, too many times
        └── ShardInterrupted      a worker was drained or vanished; its shard goes on elsewhere

`ObjectNotFound` is a StoreRefused: the caller knows which missing object is an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def first_line(error: Exception) -> str:
    """What a library's error says, without its debugging output: our own texts are one line."""
    return str(error).strip().split("\n", 1)[0]


class ShardlineError(Exception):
    """Base of all errors that Shardline raises on purpose; its text is one clear line."""


class PermanentError(ShardlineError):
    """Trying again changes nothing."""


class TransientError(ShardlineError):
    """The same call may succeed later."""


class WrongInput(PermanentError):
    """What the user gave is wrong: exit code 2, never retried."""


@dataclass(frozen=True)
class FieldProblem:
    """One field of a job file (dotted path) and what is wrong with it."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class JobFileError(WrongInput):
    """A job file that cannot be run. Names each field and what was expected."""

    def __init__(self, where: str, problems: Sequence[FieldProblem]) -> None:
        self.where = where
        self.problems = tuple(problems)
        super().__init__(f"{where}: " + "; ".join(map(str, problems)))


@dataclass(frozen=True)
class FileProblem:
    """One file of the corpus and the reason (reasons.FileReason) why it cannot be used."""

    source: str
    reason: str
    detail: str = ""

    def __str__(self) -> str:
        shown = (
            self.source.encode("unicode_escape").decode()
            if not self.source.isprintable()
            else self.source
        )
        return f"{shown}: {self.reason}" + (f" ({self.detail})" if self.detail else "")


class CorpusError(WrongInput):
    """Files of the corpus that cannot be read to their end, or a corpus without a document."""

    def __init__(self, message: str, problems: Sequence[FileProblem] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join([message, *map(str, problems)]))


class ModelNotFound(WrongInput):
    """No such model, revision or model folder."""


class NotAllowed(WrongInput):
    """A path or an option outside its allow-list."""


class NotYet(WrongInput):
    """A part of the job file that this version cannot run."""


class LawBroken(PermanentError):
    """Rows are missing or doubled. Nothing may be published."""


class LimitExceeded(PermanentError):
    """More rejected rows or dead letters than the job file allows."""


class JobNotReady(PermanentError):
    """A stage was asked for before the stage that it reads from has ended."""


class ValidationFailed(PermanentError):
    """The validation of the merged files failed; the text names each failed expectation."""


class Superseded(PermanentError):
    """Another job's data is current in this partition; publishing this one needs force."""


class ReplayRefused(PermanentError):
    """A replay that cannot be opened or finished; the text says what is in its way."""


class Cancelled(PermanentError):
    """The job was cancelled."""


class ObjectConflict(PermanentError):
    """An object that is written once already holds other bytes."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{path}: exists with other content; it is written once and never changed")


class SickMachine(PermanentError):
    """A disk of this machine is full, broken or may not be written; another machine may do."""


class StoreRefused(PermanentError):
    """The store answered no: no permission, bad key, no such bucket, an unwritable folder."""


class ObjectNotFound(StoreRefused):
    """No object of that name."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{path}: no such object")


class StoreUnavailable(TransientError):
    """The store did not answer, or asked to come back later."""


class CommitConflict(TransientError):
    """Other publishers committed first, more often than we tried."""


class ShardInterrupted(TransientError):
    """A worker was drained or vanished; the shard goes on from its segments."""


def raise_first(ends: Iterable[object]) -> None:
    """Raise the first error of what tasks ended by; cancellations are passed over."""
    for end in ends:
        if isinstance(end, Exception):
            raise end
