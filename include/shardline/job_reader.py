"""From a file, or a dictionary, to a checked job; every field that is wrong is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import (
    ValidationError,
)

from shardline.errors import FieldProblem, JobFileError
from shardline.job import JobFile


def load_job(path: Path, overrides: Mapping[str, Any] | None = None) -> JobFile:
    """Read and check a job file; `overrides` maps dotted fields to values.

    Raises:
        JobFileError: no such file, no YAML, or fields that are wrong (all of them are named).
    """
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobFileError(
            str(path), [FieldProblem("", f"cannot be read ({error.strerror})")]
        ) from error
    except UnicodeDecodeError as error:
        raise JobFileError(str(path), [FieldProblem("", "is not UTF-8 text")]) from error
    except yaml.YAMLError as error:
        detail = " ".join(str(error).split())
        raise JobFileError(str(path), [FieldProblem("", f"is not YAML: {detail}")]) from error
    return parse_job(given, folder=path.resolve().parent, where=str(path), overrides=overrides)


def parse_job(
    given: object, *, folder: Path, where: str = "job", overrides: Mapping[str, Any] | None = None
) -> JobFile:
    """Check a job given as a dictionary; `file:` and relative paths start at `folder`.

    Raises:
        JobFileError: fields that are wrong (all of them are named).
    """
    if not isinstance(given, dict):
        raise JobFileError(where, [FieldProblem("", "expected a mapping of fields")])
    try:
        filled = _with_overrides(given, overrides or {})
        return JobFile.model_validate(_absolute(_read_files(filled, folder, ""), folder))
    except ValidationError as error:
        raise JobFileError(where, list(_problems(error))) from error
    except _BadField as error:
        raise JobFileError(where, [error.problem]) from error


def change_job(
    job: JobFile, changes: Mapping[str, Any], *, folder: Path, where: str = "job"
) -> JobFile:
    """A checked job with other values for some dotted fields; relative paths start at `folder`.

    Raises:
        JobFileError: fields that are wrong (all of them are named).
    """
    try:
        changed = _with_overrides(job.model_dump(mode="json"), changes)
        return JobFile.model_validate(_absolute(changed, folder))
    except ValidationError as error:
        raise JobFileError(where, list(_problems(error))) from error
    except _BadField as error:
        raise JobFileError(where, [error.problem]) from error


class _BadField(Exception):
    def __init__(self, field: str, message: str) -> None:
        self.problem = FieldProblem(field, message)


def _problems(error: ValidationError) -> Iterator[FieldProblem]:
    for e in error.errors(include_url=False):
        field = ".".join(map(str, e["loc"]))
        message = {
            "extra_forbidden": "unknown field",
            "missing": "this field is missing",
        }.get(e["type"], e["msg"].removeprefix("Value error, "))
        yield FieldProblem(field, message)


def _with_overrides(given: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    filled = dict(given)
    for field, value in overrides.items():
        *parents, last = field.split(".")
        block = filled
        for name in parents:
            inner = block.get(name)
            if inner is not None and not isinstance(inner, dict):
                raise _BadField(field, f"{name} holds no fields")
            block[name] = dict(inner or {})
            block = block[name]
        block[last] = value
    return filled


def _read_files(value: Any, folder: Path, field: str) -> Any:
    """Replace `{file: PATH}` by the file's text, or its parsed content for YAML and JSON."""
    if isinstance(value, dict):
        if set(value) == {"file"} and field:
            return _read_file(value["file"], folder, field)
        return {k: _read_files(v, folder, f"{field}.{k}".lstrip(".")) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_read_files(v, folder, f"{field}.{i}") for i, v in enumerate(value)]
    return value


def _read_file(name: object, folder: Path, field: str) -> Any:
    path = (folder / str(name)).resolve()
    # a job given through a form or an API must not read the machine's other files
    if not path.is_relative_to(folder.resolve()):
        raise _BadField(f"{field}.file", f"{name}: expected a file below the job file's folder")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _BadField(f"{field}.file", f"{name}: cannot be read ({_why(error)})") from error
    if path.suffix not in (".json", ".yaml", ".yml"):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise _BadField(
            f"{field}.file", f"{name}: is not valid ({' '.join(str(error).split())})"
        ) from error


def _why(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or "error" if isinstance(error, OSError) else "not UTF-8"


def _absolute(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make the paths of the corpus, and model folders that begin with a dot, absolute."""
    for field in ("uri", "wait_for"):
        corpus = job.get("corpus")
        path = corpus.get(field) if isinstance(corpus, dict) else None
        if isinstance(corpus, dict) and isinstance(path, str) and path and "://" not in path:
            job = job | {"corpus": corpus | {field: str(_join(folder, path))}}
    for runner in ("local", "gpu"):
        block = job.get(runner)
        model = block.get("model") if isinstance(block, dict) else None
        if isinstance(block, dict) and isinstance(model, str) and model.startswith(("./", "../")):
            job = job | {runner: block | {"model": str(_join(folder, model))}}
    return job


def _join(folder: Path, path: str) -> Path:
    """Join without touching the disk: a glob or a placeholder is no path yet."""
    joined = folder / path
    parts: list[str] = []
    for part in joined.parts:
        if part == "..":
            del parts[max(1, len(parts) - 1) :]
        else:
            parts.append(part)
    return Path(*parts)
