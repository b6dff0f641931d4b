"""The blocks of a job file, each checked field by field."""

from __future__ import annotations

import json
import re
from datetime import date
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from shardline.template import Template, parse_template

EngineName = Literal["vllm", "stub"]
PARTITION_FIELD = re.compile(r"\{\{\s*partition\s*\}\}")

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


def _is_template(text: str) -> str:
    parse_template(text)
    return text


TemplateText = Annotated[str, AfterValidator(_is_template)]


class Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Sample(Block):
    """Take `rows` valid documents, the same ones on any number of workers."""

    rows: Annotated[int, Field(ge=1)]
    """How many valid documents to take."""
    seed: int = 0
    """Another seed takes other documents."""


class Corpus(Block):
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
        name = PARTITION_FIELD.sub("", wait_for)
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


class Message(Block):
    """One message of the request, in OpenAI's terms."""

    role: Literal["system", "user", "assistant", "developer"]
    content: TemplateText
    """Text with `{{ column }}` placeholders, or `{file: PATH}`."""

    @property
    def template(self) -> Template:
        return parse_template(self.content)


class Output(Block):
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
        return None if schema is None else as_json(schema)

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


class EngineBlock(Block):
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


class Hosted(Block):
    """A hosted batch API."""

    model: str
    conn_id: str = "openai_default"


class Shards(Block):
    """The limits of a shard; whichever binds first."""

    max_requests: Annotated[int, Field(ge=1, le=50_000)] = 50_000
    max_bytes: Annotated[int, Field(ge=1_000, le=200_000_000)] = 200_000_000
    max_tokens: None = None
    """For hosted runs only; not yet."""


class Limits(Block):
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


def as_json(value: dict[str, Any]) -> dict[str, Any]:
    """What YAML gave as the JSON that is sent: keys become strings, what has no JSON is refused."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))  # type: ignore[no-any-return]
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"expected what JSON can say ({error}); quote dates") from error


def short_schedule(value: object) -> object:
    return {"cron": value} if isinstance(value, str) else value


class Schedule(Block):
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


class Report(Block):
    """What the report shows."""

    samples: Annotated[int, Field(ge=0, le=1_000)] = 20
    """Documents shown with their answers; 0 keeps texts out of the report."""
    compare_with: str | None = None
    """A carried column with the right answer: the report shows how often the output agrees."""
