"""The job file: what a user asks for, as one checked value.

`job_reader` is the one way in. What comes out of there has every `file:` read in and every path made
absolute, so that the job means the same wherever it runs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from shardline.errors import FieldProblem, JobFileError
from shardline.job_blocks import (
    PARTITION_FIELD,
    Block,
    Corpus,
    EngineBlock,
    GpuBlock,
    Hosted,
    Limits,
    Message,
    Output,
    Report,
    Schedule,
    Shards,
    TemplateText,
    as_json,
    short_schedule,
)
from shardline.kinds import FORMS, Form, Kind, json_schema, misfit, wrong_parameter
from shardline.layout import SLUG
from shardline.template import Column, Template, parse_template

RunOn = Literal["local", "gpu", "hosted", "auto"]

_NOT_YET_RUN_ON = ("hosted", "auto")
_NOT_YET_KIND = ("video",)


class JobFile(Block):
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
    parameters: dict[str, Any] = {}  # noqa: RUF012 (pydantic copies defaults)
    """Any field of the kind's API, e.g. {max_tokens: 64, temperature: 0}. Embeddings: {dimensions: 256}."""
    output: Output = Output(text=True)
    """The form of a chat's answer. Completions are text; embeddings have none."""
    run_on: RunOn = "local"
    local: EngineBlock | None = None
    gpu: GpuBlock | None = None
    hosted: Hosted | None = None
    shards: Shards = Shards()
    limits: Limits = Limits()
    schedule: Annotated[Schedule | None, BeforeValidator(short_schedule)] = None
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
        return as_json(parameters)

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
        if self.schedule and not PARTITION_FIELD.search(self.corpus.uri):
            raise ValueError(
                "corpus.uri: expected {{ partition }} in it, since the job has a schedule"
            )
        if (
            self.corpus.wait_for
            and self.schedule
            and not PARTITION_FIELD.search(self.corpus.wait_for)
        ):
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
        if not PARTITION_FIELD.search(uri):
            return uri
        if not partition:
            problem = "{{ partition }} needs a partition: give one, e.g. 2026-11-28"
            raise JobFileError(self.name, [FieldProblem(field, problem)])
        return PARTITION_FIELD.sub(lambda _: partition, uri)
