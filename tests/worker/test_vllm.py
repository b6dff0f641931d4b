"""The real engine: a tiny model of random weights on the CPU, in a real worker process."""

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
from tokenizers import Tokenizer

from samples.tiny_model import make_tiny_model
from shardline.reasons import AttemptEnd
from tests.factories import make_job
from tests.waits import until
from tests.worker import vllm_test_fault
from tests.worker.prepared import (
    ONE_BY_ONE,
    Prepared,
    Worker,
    make_form,
    prepare,
    prepare_bodies,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PROJECT = Path(__file__).parents[2]
ENV = {"SHARDLINE_STALL_S": "60", "SHARDLINE_SEGMENT_S": "0.5", "SHARDLINE_DRAIN_S": "25"}
SNOWMAN = "\u2603"
CHOICE = {
    "type": "object",
    "properties": {"choice": {"type": "string", "enum": ["positive", "negative"]}},
    "required": ["choice"],
    "additionalProperties": False,
}
POINT = {
    "type": "object",
    "properties": {"x": {"type": "boolean"}},
    "required": ["x"],
    "additionalProperties": False,
}
RECURSIVE = {"$ref": "#"}


@pytest.fixture(scope="module")
def model() -> Path:
    return make_tiny_model(PROJECT / "var" / "models" / "tiny")


@pytest.fixture
def plugin(tmp_path: Path) -> dict[str, str]:
    """The fault plug-in as an installed distribution that only these workers see."""
    folder = tmp_path / "plugin"
    metadata = folder / "vllm_test_fault-1.dist-info"
    metadata.mkdir(parents=True)
    shutil.copy(vllm_test_fault.__file__, folder)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-test-fault\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nfault = vllm_test_fault:register\n"
    )
    return {"PYTHONPATH": str(folder)}


def engine(model: Path, **args: Any) -> dict[str, Any]:
    given = {"max_model_len": 512, "max_num_seqs": 8, **args}
    return {"model": str(model), "engine": "vllm", "engine_args": given}


def ask(text: object, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": 8, "temperature": 0, **fields}


def test_every_kind_of_request_gets_its_result_or_its_reason(tmp_path: Path, model: Path) -> None:
    image = [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
    bodies = [
        ask("plain"),
        ask("a choice", response_format=make_form("choice", CHOICE)),
        ask("a point", response_format=make_form("output", POINT), max_tokens=40),
        ask("word " * 600),
        ask("never ends", response_format=make_form("output", RECURSIVE)),
        ask("no schema", response_format=make_form("output", {"type": "nonsense"})),
        ask("hot", temperature=9),
        ask(image),
        ask("as long as it may", max_tokens=None),
    ]
    # a model of random weights would write blanks until it is cut
    form = {"backend": "xgrammar", "disable_any_whitespace": True}
    local = engine(model, structured_outputs_config=form)
    prepared = prepare_bodies(tmp_path, bodies, make_job(tmp_path, local=local))
    assert prepared.run(env=ENV) == 0
    assert prepared.reasons() == {
        3: "too_long",
        4: "bad_schema",
        5: "bad_schema",
        6: "bad_parameter",
        7: "unsupported_content",
    }
    contents = [
        r.response.body["choices"][0]["message"]["content"] if r.response else None
        for r in prepared.results()
    ]
    assert orjson.loads(contents[1] or "")["choice"] in ("positive", "negative")
    assert orjson.loads(contents[2] or "")["x"] in (True, False)
    assert prepared.results()[0].response
    (record,) = prepared.attempts()
    assert record.metrics.engine_steps
    assert record.metrics.prefix_cache_queries
    assert record.metrics.peak_rss_mb


@pytest.mark.protocol(10)
@pytest.mark.parametrize("mode", ["segv", "hang"])
def test_a_poison_document_is_the_only_dead_letter(
    tmp_path: Path, model: Path, plugin: dict[str, str], mode: str
) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    token = tokenizer.encode(SNOWMAN, add_special_tokens=False).ids[0]
    texts = [f"document number {n}" for n in range(60)]
    texts.insert(30, f"document {SNOWMAN} number")
    prepared = prepare(tmp_path, texts, local=engine(model))
    fault = {"FAULT_TOKEN": str(token), "FAULT_MODE": mode, "SHARDLINE_STALL_S": "20"}
    assert prepared.run(env={**ENV, **plugin, **fault}) == 0
    reason = "stalled" if mode == "hang" else "engine_killer"
    assert prepared.reasons() == {30: reason}
    (record,) = prepared.attempts()
    assert record.counts.engine_restarts == 3
    assert record.convictions == [30]


def long_shard(tmp_path: Path, model: Path) -> Prepared:
    texts = [f"document number {n}" for n in range(400)]
    return prepare(tmp_path, texts, local=engine(model), parameters__max_tokens=100)


def children(worker: Worker) -> list[psutil.Process]:
    return psutil.Process(worker.process.pid).children(recursive=True)


def assert_gone(processes: list[psutil.Process]) -> None:
    until(f"end of {processes}", lambda: not any(map(is_alive, processes)))


def is_alive(process: psutil.Process) -> bool:
    """A zombie that nobody reaps is not."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.protocol(10)
def test_an_engine_killed_from_outside_is_replaced_and_convicts_nobody(
    tmp_path: Path, model: Path
) -> None:
    prepared = long_shard(tmp_path, model)
    worker = prepared.start(env=ENV)
    worker.read_until("segment 0 committed")
    victims = [p for p in children(worker) if "EngineCore" in p.name()]
    victims[0].kill()
    assert worker.wait() == 0
    assert prepared.reasons() == {}
    (record,) = prepared.attempts()
    assert record.counts.engine_restarts == 1
    # the dead engine's figures are in them too
    metrics = record.metrics
    assert metrics.prompt_tokens_computed
    assert metrics.prompt_tokens_cached is not None
    prompt_tokens = metrics.prompt_tokens_computed + metrics.prompt_tokens_cached
    assert prompt_tokens >= record.counts.prompt_tokens


@pytest.mark.protocol(13)
def test_a_signal_to_the_whole_group_drains_and_reaches_no_engine(
    tmp_path: Path, model: Path
) -> None:
    prepared = long_shard(tmp_path, model)
    worker = prepared.start(env={**ENV, **ONE_BY_ONE})
    worker.read_until("segment 0 committed")
    engines = children(worker)
    os.killpg(worker.process.pid, signal.SIGTERM)
    assert worker.wait() == 75
    (record,) = prepared.attempts()
    assert record.end is AttemptEnd.DRAINED
    assert record.counts.engine_restarts == 0
    assert_gone(engines)


@pytest.mark.protocol(13)
def test_engines_do_not_survive_a_worker_that_is_killed(tmp_path: Path, model: Path) -> None:
    prepared = long_shard(tmp_path, model)
    worker = prepared.start(env={**ENV, **ONE_BY_ONE})
    worker.read_until("segment 0 committed")
    engines = children(worker)
    assert len(engines) >= 2
    worker.signal(signal.SIGKILL)
    worker.process.wait()
    assert_gone(engines)
    worker.wait()
