"""The examples of include/docs/deploying.md are what the program and the manifests take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.embedded.environment import PROJECT
from shardline.job_reader import parse_job

DOC = (PROJECT / "include/docs/deploying.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", DOC, re.MULTILINE | re.DOTALL)


def example(with_key: str) -> dict[str, Any]:
    (found,) = [given for block in BLOCKS if with_key in (given := yaml.safe_load(block))]
    return dict(found)


def test_the_example_of_waiting_is_a_job_file(tmp_path: Path) -> None:
    rest = {
        "name": "tickets",
        "messages": [{"role": "user", "content": "{{ body }}"}],
        "local": {"model": "stub", "engine": "stub"},
    }
    job = parse_job(example("corpus") | rest, folder=tmp_path)
    assert job.wait_uri("2026-11-28") == "s3://lake/tickets/dt=2026-11-28/_SUCCESS"


def test_the_overlay_changes_what_there_is() -> None:
    overlay = example("resources")
    base = yaml.safe_load((PROJECT / "include/deploy/kubernetes/kustomization.yaml").read_text())
    assert [i["name"] for i in overlay["images"]] == [i["newName"] for i in base["images"]]
    names = [g["name"] for g in base["configMapGenerator"]]
    assert [g["name"] for g in overlay["configMapGenerator"]] == names
    accounts = (PROJECT / "include/deploy/kubernetes/accounts.yaml").read_text()
    for patch in overlay["patches"]:
        assert f"name: {patch['target']['name']}\n" in accounts


@pytest.mark.parametrize("path", sorted(set(re.findall(r"include/[\w./-]*\w", DOC))))
def test_what_is_named_is_there(path: str) -> None:
    named_elsewhere = {"include/deploy/kubernetes/clouds.yaml"}
    assert (PROJECT / path).exists() or path in named_elsewhere
