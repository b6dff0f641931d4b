"""Pin a model to what it is today, so that a job means the same tomorrow.

A hub id is resolved to a commit, a folder to the hash of its file names and contents. A model that
is not there is found here, when the job is planned, and not by a worker.
"""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

from shardline.errors import ModelNotFound, NotYet, StoreUnavailable, first_line
from shardline.job import EngineBlock
from shardline.store import folder_of

_READ_BYTES = 1 << 24


def pin_model(block: EngineBlock) -> str:
    """The commit of a hub model, or the content hash of a model folder.

    Raises:
        ModelNotFound: no such folder, or no such model or revision on the hub.
        StoreUnavailable: the hub does not answer.
    """
    if block.engine == "stub":
        return "stub"
    if block.model.startswith("s3://"):
        raise NotYet(
            f"model {block.model}: a model folder on s3:// is not yet possible; copy it to disk"
        )
    if block.model.startswith(("/", "file://")):
        folder = folder_of(block.model)
        assert folder is not None
        return hash_folder(folder)
    return _hub_commit(block.model, block.revision)


def hash_folder(folder: Path) -> str:
    """blake3 (32 hex digits) over names and contents of the files below a model folder.

    Raises:
        ModelNotFound: the folder is missing or has no config.json.
    """
    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"model {folder}: no model folder there (it has no config.json)")
    whole = blake3()
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        content = blake3()
        with file.open("rb") as f:
            while piece := f.read(_READ_BYTES):
                content.update(piece)
        whole.update(f"{file.relative_to(folder).as_posix()}\0{content.hexdigest()}\n".encode())
    return whole.hexdigest()[:32]


def _hub_commit(model: str, revision: str) -> str:
    """The commit that a revision of a hub model means today."""
    from httpx2 import TransportError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        commit = HfApi().model_info(model, revision=revision, timeout=20).sha
    except TransportError as error:
        raise StoreUnavailable(
            f"model {model}: the hub does not answer ({error}); without a network, give a model"
            " folder as ./path or /path"
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        why = first_line(error)
        raise ModelNotFound(
            f"model {model}, revision {revision}: the hub does not give it ({why}); check the name, "
            "accept its licence and set HF_TOKEN if it is gated, or give a folder as ./path or /path"
        ) from error
    if not commit:
        raise ModelNotFound(f"model {model}, revision {revision}: the hub names no commit")
    return str(commit)
