"""The job file: what is wrong is named by its field, what is right means the same anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from shardline.errors import JobFileError
from shardline.job import JobFile
from shardline.job_reader import load_job, parse_job
from tests.factories import make_job


def write(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def whole(**changes: Any) -> dict[str, Any]:
    job: dict[str, Any] = {
        "name": "ticket-triage",
        "corpus": {"uri": "corpus"},
        "messages": [{"role": "user", "content": "{{ text }}"}],
        "local": {"model": "stub", "engine": "stub"},
    }
    return {k: v for k, v in (job | changes).items() if v is not ...}


def problems(folder: Path, given: object, **overrides: Any) -> dict[str, str]:
    with pytest.raises(JobFileError) as caught:
        parse_job(given, folder=folder, overrides=overrides)
    assert "\n" not in str(caught.value)
    return {problem.field: problem.message for problem in caught.value.problems}


def test_a_job_file_is_read_with_its_files_and_absolute_paths(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts/triage.md").write_text("Sort this: {{ text }}\n")
    (tmp_path / "answer.json").write_text('{"type": "object"}')
    job = whole(
        corpus={"uri": "../tickets/*.jsonl"},
        messages=[{"role": "user", "content": {"file": "prompts/triage.md"}}],
        output={"json_schema": {"file": "answer.json"}},
        local={"model": "./models/tiny"},
    )
    folder = tmp_path / "jobs"
    folder.mkdir()
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    found = load_job(tmp_path / "job.yaml")
    assert found.messages[0].content == "Sort this: {{ text }}\n"
    assert found.output.json_schema == {"type": "object"}
    assert found.corpus.uri == str(tmp_path.parent / "tickets/*.jsonl")
    assert found.engine.model == str(tmp_path / "models/tiny")


def test_a_job_means_the_same_after_a_trip_through_json(tmp_path: Path) -> None:
    job = make_job(
        tmp_path,
        corpus__carry=["queue"],
        corpus__uri="s3://lake/{{ partition }}",
        schedule="@daily",
        parameters={"logit_bias": {50256: -100}, "top_p": 0.5},
        output={"choices": ["a", "b"]},
    )
    assert JobFile.model_validate(job.model_dump(mode="json")) == job
    assert JobFile.model_validate_json(job.model_dump_json()) == job


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"name": ...}, "name", "this field is missing"),
        ({"name": "Ticket Triage"}, "name", "expected a slug"),
        ({"name": "a--" * 30}, "name", "expected a slug"),
        ({"nmae": "x"}, "nmae", "unknown field"),
        ({"corpus": ...}, "corpus", "this field is missing"),
        ({"corpus": {"uri": ""}}, "corpus.uri", "at least 1"),
        ({"corpus": {"uri": "c", "carry": ["output"]}}, "corpus.carry", "expected different"),
        ({"corpus": {"uri": "c", "carry": ["Output"]}}, "corpus.carry", "expected different"),
        ({"corpus": {"uri": "c", "carry": ["a", "A"]}}, "corpus.carry", "expected different"),
        ({"corpus": {"uri": "c", "sample": {"rows": 0}}}, "corpus.sample.rows", "greater"),
        ({"corpus": {"uri": "c", "dedupe": "fuzzy"}}, "corpus.dedupe", "'exact' or 'none'"),
        ({"messages": []}, "messages", "missing or empty: kind chat asks with it"),
        ({"messages": ...}, "messages", "missing or empty: kind chat asks with it"),
        ({"messages": [{"role": "cat", "content": ""}]}, "messages.0.role", "'system'"),
        (
            {"messages": [{"role": "user", "content": "{{ a | b }}"}]},
            "messages.0.content",
            "expected a column name",
        ),
        ({"messages": [{"role": "user", "content": "hi"}]}, "", "messages: expected at least one"),
        ({"parameters": {"stream": True}}, "parameters", "stream cannot be set here"),
        ({"parameters": {"response_format": {}}}, "parameters", "stands in `output`"),
        ({"parameters": {"n": 2}}, "parameters", "n cannot be set here"),
        (
            {"parameters": yaml.safe_load("{stop: 2026-01-01}")},
            "parameters",
            "expected what JSON can say",
        ),
        ({"parameters": {"top_p": float("nan")}}, "parameters", "expected what JSON can say"),
        ({"output": {"choices": ["a"]}}, "output.choices", "at least 2"),
        ({"output": {"choices": ["a", "a"]}}, "output", "expected different words"),
        ({"output": {"choices": [True, False]}}, "output.choices.0", "string"),
        ({"output": {"choices": ["a", "b"], "text": True}}, "output", "expected one of"),
        ({"run_on": "hosted"}, "run_on", "hosted is not yet possible"),
        ({"run_on": "gpu"}, "", "gpu: expected this block with a model"),
        ({"kind": "video"}, "kind", "video is not yet possible"),
        ({"prompt": "{{ text }}"}, "prompt", "kind chat asks with `messages`, not with `prompt`"),
        ({"local": ...}, "", "local: expected this block"),
        ({"local": {"model": "m", "engine": "x"}}, "local.engine", "'vllm' or 'stub'"),
        ({"shards": {"max_requests": 50_001}}, "shards.max_requests", "50000"),
        ({"shards": {"max_bytes": 999}}, "shards.max_bytes", "1000"),
        ({"limits": {"max_rejected": 1.5}}, "limits.max_rejected", "1"),
        ({"limits": {"max_dead": -1}}, "limits.max_dead", "0"),
        ({"limits": {"budget_usd": 5}}, "limits.budget_usd", "None"),
        ({"schedule": "@hourly"}, "schedule.cron", 'expected "@daily"'),
        ({"schedule": "@daily"}, "", "corpus.uri: expected {{ partition }}"),
        ({"report": {"compare_with": "x"}}, "", "report.compare_with: expected a column"),
        ({"rerun": -1}, "rerun", "greater"),
    ],
)
def test_what_is_wrong_is_named_by_its_field(
    tmp_path: Path, changes: dict[str, Any], field: str, message: str
) -> None:
    found = problems(tmp_path, whole(**changes))
    assert field in found
    assert message in found[field]


PROMPT = {"kind": "completion", "messages": ..., "prompt": "{{ text }}"}
INPUT = {"kind": "embedding", "messages": ..., "input": "{{ text }}"}
MESSAGES = [{"role": "user", "content": "{{ text }}"}]


@pytest.mark.parametrize(
    ("kind", "changes", "field", "message"),
    [
        (PROMPT, {"prompt": ...}, "prompt", "missing or empty: kind completion asks with it"),
        (PROMPT, {"prompt": "{{ a | b }}"}, "prompt", "expected a column name"),
        (PROMPT, {"prompt": "hello"}, "", "prompt: expected at least one {{ column }}"),
        (PROMPT, {"prompt": ["{{ text }}"]}, "prompt", "valid string"),
        (PROMPT, {"messages": MESSAGES}, "messages", "kind completion asks with `prompt`"),
        (PROMPT, {"input": "{{ a }}"}, "input", "kind completion asks with `prompt`"),
        (PROMPT, {"output": {"choices": ["a", "b"]}}, "output", "choices: completions answer in"),
        (PROMPT, {"output": {"json_schema": {}}}, "output", "json_schema: completions answer in"),
        (PROMPT, {"parameters": {"prompt": "x"}}, "parameters", "prompt cannot be set here"),
        (
            PROMPT,
            {"local": {"model": "m", "chat_template": "x"}},
            "",
            "local.chat_template: kind completion has no chat",
        ),
        (INPUT, {"input": ""}, "input", "missing or empty: kind embedding asks with it"),
        (INPUT, {"input": "hello"}, "", "input: expected at least one {{ column }}"),
        (INPUT, {"messages": MESSAGES}, "messages", "kind embedding asks with `input`"),
        (INPUT, {"output": {"choices": ["a", "b"]}}, "output", "has no form: leave this field"),
        (INPUT, {"output": {"text": True}}, "output", "has no form: leave this field"),
        (INPUT, {"parameters": {"max_tokens": 1}}, "parameters", "kind embedding has only dim"),
        (INPUT, {"parameters": {"encoding_format": "float"}}, "parameters", "travel as base64"),
        (INPUT, {"parameters": {"dimensions": 0}}, "parameters", "dimensions: expected a whole"),
        (INPUT, {"parameters": {"dimensions": "8"}}, "parameters", "dimensions: expected a whole"),
        (
            INPUT,
            {"corpus": {"uri": "c", "carry": ["l"]}, "report": {"compare_with": "l"}},
            "",
            "report.compare_with: a vector is no word",
        ),
    ],
)
def test_fields_of_another_kind_are_named(
    tmp_path: Path, kind: dict[str, Any], changes: dict[str, Any], field: str, message: str
) -> None:
    found = problems(tmp_path, whole(**kind | changes))
    assert list(found) == [field]
    assert message in found[field]


def test_a_prompt_or_an_input_may_stand_in_a_file_and_names_the_columns(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("{{ a }} and {{ b.c }} and {{ a }}")
    for kind, field in ((PROMPT, "prompt"), (INPUT, "input")):
        job = parse_job(whole(**kind | {field: {"file": "prompt.txt"}}), folder=tmp_path)
        assert [column.name for column in job.text_columns] == ["a", "b.c"]


@pytest.mark.parametrize("kind", [PROMPT, INPUT], ids=["completion", "embedding"])
def test_a_job_of_any_kind_means_the_same_after_a_trip_through_json(
    tmp_path: Path, kind: dict[str, Any]
) -> None:
    job = parse_job(whole(**kind), folder=tmp_path)
    assert JobFile.model_validate(job.model_dump(mode="json")) == job
    assert JobFile.model_validate_json(job.model_dump_json()) == job


@pytest.mark.parametrize(
    ("job", "is_valid"),
    [
        (whole(), True),
        (whole(kind="chat"), True),
        (whole(messages=...), False),
        (whole(prompt="{{ text }}"), False),
        (whole(**PROMPT), True),
        (whole(**PROMPT | {"messages": MESSAGES}), False),
        (whole(**INPUT), True),
        (whole(**INPUT | {"input": ...}), False),
    ],
)
def test_the_schema_for_editors_knows_which_field_belongs_to_which_kind(
    job: dict[str, Any], is_valid: bool
) -> None:
    assert Draft202012Validator(JobFile.model_json_schema()).is_valid(job) is is_valid


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    found = problems(tmp_path, whole(name="X", rerun=-1, nope=1))
    assert set(found) == {"name", "rerun", "nope"}


@pytest.mark.parametrize("given", [None, [], "text", 5])
def test_a_job_is_a_mapping(tmp_path: Path, given: object) -> None:
    assert problems(tmp_path, given) == {"": "expected a mapping of fields"}


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [", "is not YAML"), ("- a", "expected a mapping"), ("", "expected a mapping")],
)
def test_a_file_that_is_no_job_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(JobFileError, match=message) as caught:
        load_job(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"none.yaml: cannot be read"):
        load_job(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(JobFileError, match="is not UTF-8 text"):
        load_job(tmp_path / "bytes.yaml")


@pytest.mark.protocol(24)
@pytest.mark.parametrize("name", ["../secret.md", "/etc/hostname", "link.md"])
def test_a_file_outside_the_folder_of_the_job_is_not_read(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    (tmp_path / "secret.md").write_text("{{ text }}")
    (folder / "link.md").symlink_to(tmp_path / "secret.md")
    job = whole(messages=[{"role": "user", "content": {"file": name}}])
    found = problems(folder, job)
    assert "expected a file below" in found["messages.0.content.file"]


def test_a_file_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    for name, message in (("none.json", "cannot be read"), ("bad.json", "is not valid")):
        found = problems(tmp_path, whole(output={"json_schema": {"file": name}}))
        assert message in found["output.json_schema.file"]


def test_overrides_replace_single_fields(tmp_path: Path) -> None:
    overrides = {"corpus.uri": "/other", "limits.max_dead": 0.5, "corpus.sample": {"rows": 5}}
    job = parse_job(whole(), folder=tmp_path, overrides=overrides)
    assert job.corpus.uri == "/other"
    assert job.limits.max_dead == 0.5
    assert job.table == "ticket-triage__sample"
    assert problems(tmp_path, whole(), **{"name.x": 1}) == {"name.x": "name holds no fields"}
    assert "unknown field" in problems(tmp_path, whole(), **{"corpus.x": 1})["corpus.x"]


def test_overrides_leave_the_given_job_as_it_was(tmp_path: Path) -> None:
    given = whole()
    parse_job(given, folder=tmp_path, overrides={"corpus.uri": "/other"})
    assert given == whole()


def test_text_columns_are_all_columns_of_all_messages_once(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "{{ a }}"},
        {"role": "user", "content": "{{ b.c }} {{ a }} {{ d }}"},
    ]
    job = make_job(tmp_path, messages=messages)
    assert [column.name for column in job.text_columns] == ["a", "b.c", "d"]


def test_a_partition_is_put_in_literally(tmp_path: Path) -> None:
    job = make_job(tmp_path, corpus__uri="s3://lake/dt={{partition}}/{{ partition }}.jsonl")
    assert job.corpus_uri("2026-01-02") == "s3://lake/dt=2026-01-02/2026-01-02.jsonl"
    assert job.corpus_uri(r"\1") == r"s3://lake/dt=\1/\1.jsonl"
    with pytest.raises(JobFileError, match=r"corpus.uri: \{\{ partition \}\} needs a partition"):
        job.corpus_uri(None)


@pytest.mark.parametrize(
    ("uri", "absolute"),
    [
        ("corpus", "/base/jobs/corpus"),
        ("../in/*.jsonl", "/base/in/*.jsonl"),
        ("../../../../x", "/x"),
        ("/a/b", "/a/b"),
        ("s3://b/k", "s3://b/k"),
        ("file:///a", "file:///a"),
    ],
)
def test_a_corpus_path_starts_at_the_folder_of_the_job(uri: str, absolute: str) -> None:
    assert parse_job(whole(corpus={"uri": uri}), folder=Path("/base/jobs")).corpus.uri == absolute
