"""The parts of the test cluster that can be looked at without one."""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from tests.cluster.fakegpu import field, fields
from tests.cluster.ground import read_ground
from tests.cluster.mkimage import make_image


def make_root(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "tool").write_text("#!/bin/sh\n")
    (folder / "bin" / "other").symlink_to("tool")
    return folder


def test_the_same_folder_gives_the_same_image(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_image(make_root(tmp_path / name), "localhost/x:test", tmp_path / f"{name}.tar", [], [])
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_every_blob_of_an_image_is_named_by_its_digest(tmp_path: Path) -> None:
    out = tmp_path / "x.tar"
    make_image(make_root(tmp_path / "root"), "localhost/x:test", out, ["/bin/tool"], ["A=1"])
    with tarfile.open(out) as tar:
        found = {m.name: tar.extractfile(m).read() for m in tar.getmembers()}  # type: ignore[union-attr]
    blobs = {name: body for name, body in found.items() if name.startswith("blobs/sha256/")}
    for name, body in blobs.items():
        assert Path(name).name == hashlib.sha256(body).hexdigest()
    (listed,) = json.loads(found["index.json"])["manifests"]
    manifest = json.loads(blobs["blobs/" + listed["digest"].replace(":", "/")])
    config = json.loads(blobs["blobs/" + manifest["config"]["digest"].replace(":", "/")])
    assert config["config"]["Entrypoint"] == ["/bin/tool"]
    assert "A=1" in config["config"]["Env"]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 20_000])
def test_an_encoded_message_is_decoded_to_what_it_was(size: int) -> None:
    message = field(1, "a" * size) + field(3, field(2, b"inner"))
    assert list(fields(message)) == [(1, b"a" * size), (3, field(2, b"inner"))]


def test_mounts_below_others_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "config")
    monkeypatch.setenv("TEST_WORKER_MOUNTS", "/usr:/repo/.venv:/repo:/usr/local:/repository")
    assert read_ground().worker_mounts == ("/repo", "/repository", "/usr")


def test_without_a_cluster_it_is_said_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(RuntimeError, match="make test-cluster"):
        read_ground()
