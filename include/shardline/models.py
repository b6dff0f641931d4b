"""Pin a model to what it is today, so that a job means the same tomorrow.

A hub id is resolved to a commit, a folder to the hash of its file names and contents, a folder on
s3:// to the hash of its listing. A model that is not there is found here, when the job is planned,
and not by a worker.
"""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

from shardline.errors import ModelNotFound
from shardline.hub import hub_commit
from shardline.job_blocks import EngineBlock
from shardline.weights.cache import disk_folder
from shardline.weights.listing import hash_listing, list_weights

_READ_BYTES = 1 << 24


def pin_model(block: EngineBlock) -> str:
    """The commit of a hub model, or the hash of a model folder.

    Raises:
        ModelNotFound: no such folder, or no such model or revision on the hub.
        StoreRefused: no permission to read the folder on s3://.
        StoreUnavailable: the hub or the object store does not answer.
    """
    if block.engine == "stub":
        return "stub"
    if block.model.startswith("s3://"):
        return hash_listing(list_weights(block.model))
    if (folder := disk_folder(block)) is not None:
        return hash_folder(folder)
    return hub_commit(block.model, block.revision)


def check_model(block: EngineBlock) -> None:
    """Find a model that cannot be had, without reading it.

    Raises:
        As pin_model.
    """
    if block.engine != "stub" and (folder := disk_folder(block)) is not None:
        _check_folder(folder)
    else:
        pin_model(block)


def hash_folder(folder: Path) -> str:
    """blake3 (32 hex digits) over names and contents of the files below a model folder.

    Raises:
        ModelNotFound: the folder is missing or has no config.json.
    """
    _check_folder(folder)
    whole = blake3()
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        content = blake3()
        with file.open("rb") as f:
            while piece := f.read(_READ_BYTES):
                content.update(piece)
        whole.update(f"{file.relative_to(folder).as_posix()}\0{content.hexdigest()}\n".encode())
    return whole.hexdigest()[:32]


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"model {folder}: no model folder there (it has no config.json)")
