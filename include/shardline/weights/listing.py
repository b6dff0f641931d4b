"""A model folder on s3://: which files it is made of, and the hash that stands for them.

The hash is over names, sizes and ETags: a store makes a new ETag for new bytes, and nobody has to
read 140 GB to plan a job.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from blake3 import blake3

from shardline.errors import ModelNotFound
from shardline.store import ObjectInfo, open_store


class WeightFile(NamedTuple):
    """One file of a model folder; `name` is relative to it."""

    name: str
    size_bytes: int
    e_tag: str


def list_weights(uri: str) -> list[WeightFile]:
    """The files of a model folder on s3://, by name; hidden ones and folder markers are left out.

    Raises:
        ModelNotFound: there is no such folder, or it has no config.json.
        StoreRefused: no permission, or no such bucket. StoreUnavailable: the store does not answer.
    """
    found = judge_weights(open_store(uri).list(""))
    if not any(file.name == "config.json" for file in found):
        what = "it has no config.json" if found else "nothing lies below this name"
        raise ModelNotFound(f"model {uri}: no model folder there ({what})")
    return found


def judge_weights(listed: Iterable[ObjectInfo]) -> list[WeightFile]:
    """What of a listing belongs to a model."""
    return sorted(
        WeightFile(o.path, o.size_bytes, (o.e_tag or o.modified.isoformat()).strip('"'))
        for o in listed
        if o.size_bytes and not any(part.startswith(".") for part in o.path.split("/"))
    )


def hash_listing(files: Iterable[WeightFile]) -> str:
    """blake3 (32 hex digits) over names, sizes and ETags."""
    whole = blake3()
    for file in sorted(files):
        whole.update(f"{file.name}\0{file.size_bytes}\0{file.e_tag}\n".encode())
    return whole.hexdigest()[:32]
