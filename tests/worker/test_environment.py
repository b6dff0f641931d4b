"""The worker in an environment of its own, as in its image: without Airflow and its weight."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from samples.tiny_model import make_tiny_model
from tests.worker.prepared import Prepared, Worker, prepare

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PROJECT = Path(__file__).parents[2]
REQUIREMENTS = PROJECT / "include" / "requirements"
NOT_THERE = ("airflow", "pandas", "duckdb", "deltalake", "great_expectations", "sqlalchemy")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment: worker.txt and cpu.txt, at the versions of the lock."""
    folder = tmp_path_factory.mktemp("worker-only")
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    pinned = folder / "pinned.txt"
    compiled = [uv, "pip", "compile", "-q", str(REQUIREMENTS / "worker.txt")]
    compiled += [str(REQUIREMENTS / "cpu.txt"), "-o", str(pinned), "--python-version", "3.11"]
    compiled += ["--constraints", str(REQUIREMENTS / "cpu-lock-3.11.txt")]
    compiled += ["--overrides", str(REQUIREMENTS / "cpu-overrides.txt")]
    compiled += ["--excludes", str(REQUIREMENTS / "cpu-excludes.txt")]
    subprocess.run(compiled, check=True)
    venv = folder / "venv"
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(venv)], check=True)
    install = [uv, "pip", "install", "-q", "-p", str(venv / "bin" / "python"), "--no-deps"]
    subprocess.run([*install, "-r", str(pinned)], check=True)
    subprocess.run([*install, "-e", str(PROJECT)], check=True)
    return venv / "bin" / "python"


def run(prepared: Prepared, python: Path, monkeypatch: pytest.MonkeyPatch) -> Worker:
    monkeypatch.setattr(sys, "executable", str(python))
    return prepared.start(env={"SHARDLINE_STALL_S": "120", "PYTHONNOUSERSITE": "1"})


@pytest.mark.parametrize("name", NOT_THERE)
def test_nothing_of_the_scheduler_is_there(python: Path, name: str) -> None:
    found = subprocess.run([str(python), "-c", f"import {name}"], capture_output=True, text=True)
    assert "ModuleNotFoundError" in found.stderr


def test_a_shard_runs_on_the_stub(
    tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(tmp_path, [f"document {n}" for n in range(20)])
    assert run(prepared, python, monkeypatch).wait() == 0
    assert len(prepared.results()) == 20


def test_a_shard_runs_on_vllm(
    tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tiny_model(PROJECT / "var" / "models" / "tiny")
    engine = {"model": str(model), "engine": "vllm", "engine_args": {"max_model_len": 512}}
    texts = [f"document {n}" for n in range(8)]
    prepared = prepare(tmp_path, texts, local=engine, output={"choices": ["a", "b"]})
    worker = run(prepared, python, monkeypatch)
    worker.read_until("engine is up")
    assert worker.wait() == 0
    assert prepared.reasons() == {}
