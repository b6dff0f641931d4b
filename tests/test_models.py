"""Models are pinned to what they are today: by commit, or by the content of their folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardline.errors import ModelNotFound
from shardline.job_blocks import EngineBlock
from shardline.models import check_model, hash_folder, pin_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    (model / "sub").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "sub/weights").write_bytes(b"\0" * 1_000)
    return model


@pytest.mark.protocol(1)
def test_a_folder_is_the_hash_of_its_names_and_contents(folder: Path, tmp_path: Path) -> None:
    pinned = pin_model(EngineBlock(model=str(folder)))
    assert len(pinned) == 32
    assert pin_model(EngineBlock(model=folder.as_uri())) == pinned
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    assert hash_folder(moved) == pinned
    (moved / "sub/weights").write_bytes(b"\0" * 999 + b"\1")
    changed = hash_folder(moved)
    (moved / "sub/weights").rename(moved / "sub/other")
    assert len({pinned, changed, hash_folder(moved)}) == 3


def test_what_is_no_model_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no model folder there \(it has no config.json\)"):
        pin_model(EngineBlock(model=str(tmp_path)))


def test_the_stub_has_no_model() -> None:
    assert pin_model(EngineBlock(model="anything", engine="stub")) == "stub"


def test_a_model_is_looked_for_without_reading_it(folder: Path, tmp_path: Path) -> None:
    check_model(EngineBlock(model=str(folder)))
    check_model(EngineBlock(model="anything", engine="stub"))
    with pytest.raises(ModelNotFound, match="no model folder there"):
        check_model(EngineBlock(model=str(tmp_path)))


def test_a_name_that_no_hub_has_is_not_found() -> None:
    with pytest.raises(ModelNotFound, match="give a folder as"):
        pin_model(EngineBlock(model="no such name!"))


def test_a_hub_that_does_not_answer_may_answer_later() -> None:
    program = (
        "from shardline.errors import StoreUnavailable\n"
        "from shardline.job import EngineBlock\n"
        "from shardline.models import pin_model\n"
        "try:\n"
        "    pin_model(EngineBlock(model='some/model'))\n"
        "except StoreUnavailable as error:\n"
        "    print(error)\n"
    )
    # the hub's address is read once, at import: a process of its own
    nowhere = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=nowhere, capture_output=True, text=True, check=True
    )
    assert ended.stdout.startswith("model some/model: the hub does not answer")
