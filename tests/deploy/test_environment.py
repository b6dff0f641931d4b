"""What the components are told, and what of the caller's environment they never see."""

import os
from pathlib import Path

import pytest

from deploy.embedded.__main__ import open_stack
from deploy.embedded.environment import Folders, environment
from deploy.embedded.home import Home, Secrets
from deploy.embedded.stack import local_pools, pools_here

SECRETS = Secrets("fernet", "jwt", "api", "password")
EMBEDDED = "postgresql://embedded"


def env(inherited: dict[str, str], changes: dict[str, str] | None = None) -> dict[str, str]:
    home = Home(Path("home"))
    return environment(home, SECRETS, Folders(), EMBEDDED, 8080, inherited, changes or {})


def test_the_database_of_another_project_is_never_migrated():
    made = env({"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "production", "AIRFLOW_HOME": "elsewhere"})
    assert made["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == EMBEDDED
    assert made["AIRFLOW_HOME"] == "home"


@pytest.mark.parametrize("name", ["SHARDLINE_ROOT", "AIRFLOW_CONN_OPENAI_DEFAULT", "AWS_REGION"])
def test_settings_and_connections_are_handed_on(name):
    assert env({name: "value"})[name] == "value"


def test_python_may_write_its_byte_code():
    assert "PYTHONDONTWRITEBYTECODE" not in env({"PYTHONDONTWRITEBYTECODE": "1"})


def test_components_reach_each_other_past_a_proxy():
    assert env({"no_proxy": "lan"})["no_proxy"] == "lan,127.0.0.1,localhost"


def test_changes_win():
    changed = env({}, {"AIRFLOW__CORE__PARALLELISM": "2"})
    assert changed["AIRFLOW__CORE__PARALLELISM"] == "2"


def test_as_many_shards_run_at_once_as_cores_and_memory_allow():
    gigabyte = 1 << 30
    assert local_pools(cores=2, memory_bytes=24 * gigabyte) == {"local": 3}
    assert local_pools(cores=8, memory_bytes=16 * gigabyte) == {"local": 2}
    assert local_pools(cores=64, memory_bytes=512 * gigabyte) == {"local": 4}
    assert local_pools(cores=1, memory_bytes=2 * gigabyte) == {"local": 1}


def test_the_pool_of_pods_is_as_large_as_the_env_file_says(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", {"SHARDLINE_HOME": str(tmp_path)})
    (tmp_path / ".env").write_text("SHARDLINE_GPU_PODS=3\n")
    open_stack(tmp_path / ".env")
    assert pools_here()["gpu"] == 3
