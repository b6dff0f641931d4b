"""Where the command line ends: every error becomes one clear line and an exit code.

0 published · 1 the job failed · 2 the job file or the input is wrong, so nothing needs a retry. Only an
error that nobody foresaw shows a traceback.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from pydantic import ValidationError
from typer.exceptions import Abort, TyperException

from shardline.errors import (
    Cancelled,
    JobFileError,
    LimitExceeded,
    ShardlineError,
    StoreRefused,
    Superseded,
    TransientError,
    ValidationFailed,
    WrongInput,
)
from shardline.reasons import CommandExit

_ADVICE: tuple[tuple[type[ShardlineError], str], ...] = (
    (Superseded, "raise `rerun` in the job file, or repeat with --force"),
    (LimitExceeded, "mend the cause or the limit in the job file, then run it again"),
    (ValidationFailed, "nothing was published; `shardline report JOB` shows what the checks saw"),
    (Cancelled, "`shardline resume JOB` goes on from what is committed"),
    (TransientError, "run the same command again: it goes on from what is committed"),
)


class Stopped(Exception):
    """The user stopped the job, and its worker has committed what was finished."""


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code of the process."""
    from shardline.cli.app import app

    try:
        code = app(arguments, prog_name="shardline", standalone_mode=False)
    except TyperException as error:
        return _usage(error)
    except ShardlineError as error:
        return _fail(str(error), _code_of(error), _advice(error))
    except ValidationError as error:
        return _fail(_settings_text(error), CommandExit.WRONG_INPUT)
    except Stopped as stopped:
        return _fail(str(stopped), CommandExit.JOB_FAILED)
    except (KeyboardInterrupt, Abort):
        return _fail("stopped", CommandExit.JOB_FAILED, "run the same command again to go on")
    except BrokenPipeError:  # `shardline files NAME | head -1` closes our output, and that is fine
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CommandExit.PUBLISHED
    return code if isinstance(code, int) else CommandExit.PUBLISHED


def quiet_logs(verbose: bool) -> None:
    """Log lines of the stages: on stderr, and only warnings unless asked for."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )


def _usage(error: TyperException) -> int:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "shardline"
    if type(error).__name__ == "NoArgsIsHelpError":
        print(message)
        return CommandExit.WRONG_INPUT
    return _fail(message, CommandExit.WRONG_INPUT, f"see `{command} --help`")


def _code_of(error: ShardlineError) -> CommandExit:
    wrong = (WrongInput, StoreRefused)
    return CommandExit.WRONG_INPUT if isinstance(error, wrong) else CommandExit.JOB_FAILED


def _advice(error: ShardlineError) -> str:
    if isinstance(error, JobFileError):
        is_unknown = any(p.message == "unknown field" for p in error.problems)
        return "`shardline schema` prints every field that there is" if is_unknown else ""
    return next((text for kind, text in _ADVICE if isinstance(error, kind)), "")


def _settings_text(error: ValidationError) -> str:
    """A setting of the environment that is wrong; job files have their own errors."""
    problems = [
        f"SHARDLINE_{'_'.join(map(str, e['loc'])).upper()}: {e['msg']}"
        for e in error.errors(include_url=False)
    ]
    return "; ".join(problems)


def _fail(message: str, code: CommandExit, advice: str = "") -> int:
    line = " ".join(f"{message}{f'; {advice}' if advice else ''}".split())
    sys.stdout.flush()
    print(f"shardline: {line}", file=sys.stderr)
    return code
