"""The job file: what a user asks for, checked field by field.

`load_job` is the one way in, for a file, for a file with overrides, and for a whole job given as a
dictionary. What comes out has every `file:` read in and every path made absolute, so that the job
means the same wherever it runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from shardline.errors import FieldProblem, JobFileError
from shardline.kinds import FORMS, Form, Kind, json_schema, misfit, wrong_parameter
from shardline.layout import SLUG
from shardline.template import Column, Template, parse_template

RunOn = Literal["local", "gpu", "hosted", "auto"]
EngineName = Literal["vllm", "stub"]

_NOT_YET_RUN_ON = ("hosted", "auto")
_NOT_YET_KIND = ("video",)
_PARTITION = re.compile(r"\{\{\s*partition\s*\}\}")


def _is_template(text: str) -> str:
    parse_template(text)
    return text


TemplateText = Annotated[str, AfterValidator(_is_template)]


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Sample(_Block):
    """Take `rows` valid documents, the same ones on any number of workers."""

    rows: Annotated[int, Field(ge=1)]
    """How many valid documents to take."""
    seed: int = 0
    """Another seed takes other documents."""


class Corpus(_Block):
    """The input: JSON Lines, CSV or Parquet files."""

    uri: Annotated[str, Field(min_length=1)]
    """A file, a folder or a glob: a path, file:// or s3://. `{{ partition }}` is filled in."""
    id: str | None = None
    """The column of the document id. Without it, source and row make one."""
    carry: tuple[str, ...] = ()
    """Columns that travel through to the result."""
    sample: Sample | None = None
    """Work on a sample; published as NAME__sample."""
    dedupe: Literal["exact", "none"] = "exact"
    """exact: equal requests run once. none: every document runs."""
    wait_for: str | None = None
    """An object that says the corpus is complete, e.g. its `_SUCCESS`; `{{ partition }}` is filled
    in. A scheduled job waits for it; any other start is refused while it is not there."""
    wait_hours: Annotated[float, Field(gt=0, le=720)] = 12
    """How long a scheduled job waits for it."""

    @field_validator("wait_for")
    @classmethod
    def _one_object(cls, wait_for: str | None) -> str | None:
        if wait_for is None:
            return None
        is_local = wait_for.startswith(("/", "file:///"))
        name = _PARTITION.sub("", wait_for)
        if not (is_local or re.match(r"s3://[^/]+/.", name)) or name.endswith("/"):
            raise ValueError("expected one object: s3://bucket/key, or file:///path")
        if set(name) & set("*?[]{}"):
            raise ValueError("expected one object: no glob, and no placeholder but {{ partition }}")
        return wait_for

    @field_validator("carry")
    @classmethod
    def _no_clash(cls, carry: tuple[str, ...]) -> tuple[str, ...]:
        # Delta compares names without case
        lower = [name.lower() for name in carry]
        clash = sorted(set(lower) & set(PUBLISHED_COLUMNS))
        if clash or len(set(lower)) < len(carry):
            raise ValueError(
                f"expected different columns, none named like a published one; found {clash or 'a repeated name'}"
            )
        return carry


class Message(_Block):
    """One message of the request, in OpenAI's terms."""

    role: Literal["system", "user", "assistant", "developer"]
    content: TemplateText
    """Text with `{{ column }}` placeholders, or `{file: PATH}`."""

    @property
    def template(self) -> Template:
        return parse_template(self.content)


class Output(_Block):
    """The form of the answer: one of `choices`, `json_schema` and `text`."""

    choices: Annotated[tuple[str, ...], Field(min_length=2)] | None = None
    """The answer is one of these words."""
    json_schema: dict[str, Any] | None = None
    """The answer is JSON of this schema; or `{file: PATH}`."""
    text: Literal[True] | None = None
    """The answer is text as the model writes it."""
    truncated: Literal["keep", "dead_letter"] = "keep"
    """What an answer is that was cut at max_tokens (an invalid one is always a dead letter)."""

    @field_validator("json_schema")
    @classmethod
    def _schema(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if schema is None else _as_json(schema)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [n for n in ("choices", "json_schema", "text") if getattr(self, n) is not None]
        if len(given) > 1:
            raise ValueError(
                f"expected one of choices, json_schema, text; found {', '.join(given)}"
            )
        if self.choices is not None and len(set(self.choices)) < len(self.choices):
            raise ValueError("choices: expected different words")
        return self


class EngineBlock(_Block):
    """The model and the engine that runs it."""

    model: Annotated[str, Field(min_length=1)]
    """A hub id, a folder (absolute, or relative with ./ or ../) or an s3:// folder."""
    revision: str = "main"
    """Branch, tag or commit of a hub model; the plan pins it to a commit."""
    engine: EngineName = "vllm"
    chat_template: str | None = None
    """How messages become the prompt (Jinja), in place of the model's own; or `{file: PATH}`."""
    engine_args: dict[str, Any] = {}
    """vLLM's engine arguments, e.g. {max_model_len: 4096}. They do not change the job's id."""


class GpuBlock(EngineBlock):
    """The same, and what kind of pod it needs."""

    accelerator: str | None = None
    """A kind of GPU by the name that the deployment gives it, e.g. l4. Without it, any."""
    queue: Literal["short", "long"] = "long"
    """short: small jobs that shall not wait for the large ones, in a pool of their own."""


class Hosted(_Block):
    """A hosted batch API."""

    model: str
    conn_id: str = "openai_default"


class Shards(_Block):
    """The limits of a shard; whichever binds first."""

    max_requests: Annotated[int, Field(ge=1, le=50_000)] = 50_000
    max_bytes: Annotated[int, Field(ge=1_000, le=200_000_000)] = 200_000_000
    max_tokens: None = None
    """For hosted runs only; not yet."""


class Limits(_Block):
    """Where the job stops instead of going on."""

    max_rejected: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of rows read that may be rejected."""
    max_dead: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of rows read that may end as dead letters."""
    max_text_bytes: Annotated[int, Field(ge=1)] = 10_000_000
    """UTF-8 bytes of the columns that are asked with; longer rows are rejected."""
    budget_usd: None = None
    """Not yet."""
    deadline: None = None
    """Not yet."""
    partial: bool = False
    """Publish what is done when the job stops early."""


def _as_json(value: dict[str, Any]) -> dict[str, Any]:
    """What YAML gave as the JSON that is sent: keys become strings, what has no JSON is refused."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))  # type: ignore[no-any-return]
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"expected what JSON can say ({error}); quote dates") from error


def _short_schedule(value: object) -> object:
    return {"cron": value} if isinstance(value, str) else value


class Schedule(_Block):
    """When the job runs by itself: one run per date partition."""

    cron: str
    """@daily; other crons are not yet possible, since a partition is a date."""
    start_date: date = date(2026, 1, 1)

    @field_validator("cron")
    @classmethod
    def _daily(cls, cron: str) -> str:
        if cron not in ("@daily", "0 0 * * *"):
            raise ValueError('expected "@daily" (a partition is a date)')
        return "0 0 * * *"


class Report(_Block):
    """What the report shows."""

    samples: Annotated[int, Field(ge=0, le=1_000)] = 20
    """Documents shown with their answers; 0 keeps texts out of the report."""
    compare_with: str | None = None
    """A carried column with the right answer: the report shows how often the output agrees."""


class JobFile(_Block):
    """A job: run a model over a corpus and publish the results as a table."""

    model_config = ConfigDict(json_schema_extra=json_schema)

    name: str
    """A slug: also the dag, the published table and the asset."""
    owner: str = "nobody"
    kind: Kind = "chat"
    """chat answers `messages`, completion goes on from `prompt`, embedding makes a vector of `input`."""
    corpus: Corpus
    messages: Annotated[tuple[Message, ...], Field(validate_default=True)] = ()
    """kind chat: what each document is asked."""
    prompt: Annotated[TemplateText | None, Field(validate_default=True)] = None
    """kind completion: the text that the model goes on from, with `{{ column }}`; or `{file: PATH}`."""
    input: Annotated[TemplateText | None, Field(validate_default=True)] = None
    """kind embedding: the text that becomes a vector, with `{{ column }}`; or `{file: PATH}`."""
    parameters: dict[str, Any] = {}
    """Any field of the kind's API, e.g. {max_tokens: 64, temperature: 0}. Embeddings: {dimensions: 256}."""
    output: Output = Output(text=True)
    """The form of a chat's answer. Completions are text; embeddings have none."""
    run_on: RunOn = "local"
    local: EngineBlock | None = None
    gpu: GpuBlock | None = None
    hosted: Hosted | None = None
    shards: Shards = Shards()
    limits: Limits = Limits()
    schedule: Annotated[Schedule | None, BeforeValidator(_short_schedule)] = None
    report: Report = Report()
    rerun: Annotated[int, Field(ge=0)] = 0
    """A higher number makes it another job: everything runs again."""

    @field_validator("name")
    @classmethod
    def _slug(cls, name: str) -> str:
        if not SLUG.fullmatch(name) or len(name) > 60:
            raise ValueError("expected a slug of at most 60 characters: a-z, 0-9 and inner dashes")
        return name

    @field_validator("kind")
    @classmethod
    def _kind(cls, kind: Kind) -> Kind:
        if kind in _NOT_YET_KIND:
            raise ValueError(f"{kind} is not yet possible; expected {', '.join(FORMS)}")
        return kind

    @field_validator("messages", "prompt", "input")
    @classmethod
    def _asks(cls, value: Any, info: ValidationInfo) -> Any:
        kind, field = info.data.get("kind"), info.field_name
        if kind and field and (wrong := misfit(kind, field, value)):
            raise ValueError(wrong)
        return value

    @field_validator("output")
    @classmethod
    def _output(cls, output: Output, info: ValidationInfo) -> Output:
        """Called for a given one only."""
        kind = info.data.get("kind")
        if kind == "embedding":
            raise ValueError("an embedding is a vector and has no form: leave this field out")
        for form in ("choices", "json_schema"):
            if kind == "completion" and getattr(output, form) is not None:
                raise ValueError(f"{form}: completions answer in text; kind chat has {form}")
        return output

    @field_validator("run_on")
    @classmethod
    def _run_on(cls, run_on: RunOn) -> RunOn:
        if run_on in _NOT_YET_RUN_ON:
            raise ValueError(f"{run_on} is not yet possible; expected local or gpu")
        return run_on

    @field_validator("parameters")
    @classmethod
    def _parameters(cls, parameters: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        kind = info.data.get("kind")
        if kind and (wrong := wrong_parameter(kind, parameters)):
            raise ValueError(wrong)
        return _as_json(parameters)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.engine_block is None:
            raise ValueError(
                f"{self.run_on}: expected this block with a model, since run_on is {self.run_on}"
            )
        if not self.text_columns:
            raise ValueError(
                f"{self.form.asks}: expected at least one {{{{ column }}}}; without one all requests are equal"
            )
        if self.kind != "chat" and self.engine.chat_template is not None:
            raise ValueError(f"{self.run_on}.chat_template: kind {self.kind} has no chat")
        if self.kind == "embedding" and self.report.compare_with is not None:
            raise ValueError("report.compare_with: a vector is no word that could equal a label")
        compare = self.report.compare_with
        if compare is not None and compare not in self.corpus.carry:
            raise ValueError(
                f"report.compare_with: expected a column of corpus.carry, found {compare!r}"
            )
        if self.schedule and not _PARTITION.search(self.corpus.uri):
            raise ValueError(
                "corpus.uri: expected {{ partition }} in it, since the job has a schedule"
            )
        if self.corpus.wait_for and self.schedule and not _PARTITION.search(self.corpus.wait_for):
            raise ValueError(
                "corpus.wait_for: expected {{ partition }} in it, since the job has a schedule"
            )
        return self

    @model_serializer(mode="wrap")
    def _own_fields(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the fields of other kinds, which the same job file would not be let have."""
        foreign = {form.asks for form in FORMS.values()} - {self.form.asks}
        foreign |= {"output"} if self.kind == "embedding" else set()
        return {name: value for name, value in dump(self).items() if name not in foreign}

    @property
    def form(self) -> Form:
        """What the job's requests look like."""
        return FORMS[self.kind]

    @property
    def engine_block(self) -> EngineBlock | None:
        """The block of the runner that the job runs on."""
        return self.local if self.run_on == "local" else self.gpu

    @property
    def engine(self) -> EngineBlock:
        """The same, known to be there once the job file is checked."""
        assert self.engine_block is not None
        return self.engine_block

    @property
    def templates(self) -> tuple[Template, ...]:
        """What each document is asked: one per message, or the prompt or input alone."""
        if self.kind == "chat":
            return tuple(message.template for message in self.messages)
        return (parse_template(self.prompt or self.input or ""),)

    @property
    def text_columns(self) -> tuple[Column, ...]:
        """The columns that the templates read, each once, in order."""
        return tuple(dict.fromkeys(c for t in self.templates for c in t.columns))

    @property
    def table(self) -> str:
        """The name of the published table."""
        return f"{self.name}__sample" if self.corpus.sample else self.name

    def corpus_uri(self, partition: str | None) -> str:
        """The corpus of one partition.

        Raises:
            JobFileError: the corpus is partitioned and no partition was given.
        """
        return self._filled("corpus.uri", self.corpus.uri, partition)

    def wait_uri(self, partition: str | None) -> str | None:
        """The object that says that one partition is complete, where the job names any.

        Raises:
            JobFileError: it is partitioned and no partition was given.
        """
        if self.corpus.wait_for is None:
            return None
        return self._filled("corpus.wait_for", self.corpus.wait_for, partition)

    def _filled(self, field: str, uri: str, partition: str | None) -> str:
        if not _PARTITION.search(uri):
            return uri
        if not partition:
            problem = "{{ partition }} needs a partition: give one, e.g. 2026-11-28"
            raise JobFileError(self.name, [FieldProblem(field, problem)])
        return _PARTITION.sub(lambda _: partition, uri)


PUBLISHED_COLUMNS = (
    "document_id",
    "output",
    "model",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "fingerprint",
    "duplicate_of",
    "source",
    "row",
    "job_id",
    "dt",
)


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
