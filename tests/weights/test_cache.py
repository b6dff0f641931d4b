"""A machine has each model once, on a real S3 server and with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from shardline.errors import ModelNotFound, StoreRefused
from shardline.job_blocks import EngineBlock
from shardline.models import pin_model
from shardline.weights.cache import is_whole, local_model_folder
from tests.s3_server import s3_server
from tests.waits import until

pytestmark = pytest.mark.slow

BIG = os.urandom(1 << 20) * 60
FILES = {"config.json": b"{}", "model.safetensors": BIG, "sub/tokenizer.json": b"{}" * 500}


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    with s3_server() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=environment["AWS_ENDPOINT_URL"])
        client.create_bucket(Bucket="models")
        yield client
        client.close()


def put_model(bucket: Any, name: str) -> EngineBlock:
    for file, content in FILES.items():
        bucket.put_object(Bucket="models", Key=f"{name}/{file}", Body=content)
    return EngineBlock(model=f"s3://models/{name}")


def start(block: EngineBlock, cache: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "shardline.weights", "--model", block.model, "--cache", str(cache)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def test_a_model_is_pinned_by_its_listing(bucket: Any) -> None:
    block = put_model(bucket, "pinned")
    pinned = pin_model(block)
    assert pin_model(EngineBlock(model="s3://models/pinned/")) == pinned
    bucket.put_object(Bucket="models", Key="pinned/config.json", Body=b'{"a": 1}')
    assert pin_model(block) != pinned


@pytest.mark.parametrize("name", ["models/none", "models/pinned/sub", "no-such-bucket/model"])
def test_what_is_no_model_is_found_by_the_plan(bucket: Any, name: str) -> None:
    put_model(bucket, "pinned")
    with pytest.raises(
        (ModelNotFound, StoreRefused), match=f"s3://{name}: (no model folder|there is no)"
    ):
        pin_model(EngineBlock(model=f"s3://{name}"))


def test_it_is_fetched_once(bucket: Any, tmp_path: Path) -> None:
    block = put_model(bucket, "once")
    commit = pin_model(block)
    folder = local_model_folder(block, commit, tmp_path)
    assert contents(folder) == FILES
    for file in FILES:
        bucket.delete_object(Bucket="models", Key=f"once/{file}")
    assert local_model_folder(block, commit, tmp_path) == folder


def test_a_damaged_folder_is_mended(bucket: Any, tmp_path: Path) -> None:
    block = put_model(bucket, "damaged")
    commit = pin_model(block)
    folder = local_model_folder(block, commit, tmp_path)
    (folder / "sub/tokenizer.json").write_bytes(b"{")
    assert not is_whole(folder)
    assert contents(local_model_folder(block, commit, tmp_path)) == FILES


def test_all_of_a_damaged_folder_is_checked_again(bucket: Any, tmp_path: Path) -> None:
    """What made one file short may have left others with their length and other bytes."""
    block = put_model(bucket, "spoiled")
    commit = pin_model(block)
    folder = local_model_folder(block, commit, tmp_path)
    (folder / "sub/tokenizer.json").write_bytes(b"{")
    (folder / "config.json").write_bytes(b"\0\0")
    (folder / "model.safetensors").write_bytes(bytes(len(BIG)))
    assert contents(local_model_folder(block, commit, tmp_path)) == FILES


def test_files_that_are_not_the_planned_ones_are_refused(bucket: Any, tmp_path: Path) -> None:
    block = put_model(bucket, "changed")
    commit = pin_model(block)
    bucket.put_object(Bucket="models", Key="changed/config.json", Body=b'{"a": 1}')
    with pytest.raises(ModelNotFound, match="its files are not the ones that were planned"):
        local_model_folder(block, commit, tmp_path)


def test_four_that_start_together_fetch_it_once(bucket: Any, tmp_path: Path) -> None:
    block = put_model(bucket, "together")
    started = [start(block, tmp_path) for _ in range(4)]
    lines = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0, 0]
    (folder,) = (p for p in tmp_path.iterdir() if p.is_dir())
    assert contents(folder) == FILES
    assert sum("GB, " in line for line in lines) == 1  # one of them tells how fast it came


def test_one_that_is_killed_does_not_hold_up_the_next(bucket: Any, tmp_path: Path) -> None:
    block = put_model(bucket, "killed")
    commit = pin_model(block)
    first = start(block, tmp_path)
    lock = tmp_path / f"s3-{commit}.lock"
    until("lock", lock.exists, while_it=lambda: first.poll() is None)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = start(block, tmp_path)
    lines = second.communicate()[1]
    assert second.returncode == 0, lines
    assert contents(tmp_path / f"s3-{commit}") == FILES
    assert not (tmp_path / f"s3-{commit}.partial").exists()


def test_the_program_says_what_is_wrong_in_one_line(bucket: Any, tmp_path: Path) -> None:
    wrong = start(EngineBlock(model="s3://models/none"), tmp_path)
    assert "there (nothing lies below this name)" in wrong.communicate()[1].splitlines()[-1]
    assert wrong.returncode == 65
    away = start(put_model(bucket, "away"), tmp_path, AWS_SECRET_ACCESS_KEY="wrong")
    line = away.communicate()[1].splitlines()[-1]
    assert away.returncode == 77
    assert "wrong" not in line
    (tmp_path / "file").touch()
    sick = start(put_model(bucket, "sick"), tmp_path / "file" / "cache")
    assert str(tmp_path / "file" / "cache") in sick.communicate()[1].splitlines()[-1]
    assert sick.returncode == 70
