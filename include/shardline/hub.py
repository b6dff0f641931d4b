"""The model hub: which commit a revision means today, and a model's files on this machine.

What a person must do (accept terms, set HF_TOKEN, mend a name) is found when the job is planned: a
model that cannot be had is `ModelNotFound`, and only a hub that does not answer may be asked again.
huggingface_hub enters through this file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shardline.disk import check_space
from shardline.errors import ModelNotFound, SickMachine, StoreUnavailable, first_line

log = logging.getLogger(__name__)

_TIMEOUT_S = 20.0
_LATER = (408, 425, 429)  # and everything from 500 on
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.onnx", "*.gguf", "original/*")
"""The same weights in other clothes, which nobody loads where safetensors are."""
_NOT_WANTED = ("*.md", "*.png", "*.jpg", ".gitattributes")


def hub_commit(model: str, revision: str) -> str:
    """The commit that a revision of a hub model means today, once its files are known to be ours.

    Raises:
        ModelNotFound: no such model or revision, gated, private, or a token that is refused.
        StoreUnavailable: the hub does not answer, or asks to come back later.
    """
    with _translated(model, revision):
        commit = _api().model_info(model, revision=revision, timeout=_TIMEOUT_S).sha
        if commit:
            _check_access(model, str(commit))
    if not commit:
        raise ModelNotFound(f"model {model}, revision {revision}: the hub names no commit")
    return str(commit)


def needs_token(model: str, revision: str) -> bool:
    """Whether the hub gives us a model that it would not give without our token.

    False where we have none, or the hub does not answer now.

    Raises:
        ModelNotFound: as `hub_commit`.
    """
    from huggingface_hub import get_token

    if not get_token():
        return False
    try:
        commit = hub_commit(model, revision)
    except StoreUnavailable:
        return False
    try:
        with _translated(model, revision):
            _check_access(model, commit, token=False)
    except ModelNotFound:
        return True
    except StoreUnavailable:
        return False
    return False


def hub_folder(model: str, commit: str, cache: Path | None) -> Path:
    """A folder with the model's files of one commit, fetched below `cache` unless they are there.

    Without a `cache` it is the hub library's own (HF_HOME).

    The hub's own library locks and fetches file by file: one that was cut off comes again from its start.

    Raises:
        ModelNotFound, StoreUnavailable: as `hub_commit`.
        SickMachine: the disk is full, or fails.
    """
    from huggingface_hub.utils import disable_progress_bars, filter_repo_objects

    disable_progress_bars()  # they are made for a terminal; a pod's log wants lines
    with _translated(model, commit):
        api = _api()
        found = api.model_info(model, revision=commit, timeout=_TIMEOUT_S, files_metadata=True)
        files = found.siblings or ()
        ignored = ignored_files([file.rfilename for file in files])
        wanted = filter_repo_objects(files, ignore_patterns=list(ignored), key=_name_of)
        there = cached_hub_folder(model, commit, cache)
        _remove_leftovers(there)
        # the hub's library only warns, and its own for chunks has no class for a disk that is full
        check_space(there, sum((file.size or 0) - _bytes_here(file, there) for file in wanted))
        log.info("weights %s at %s: fetching what is not yet here", model, commit[:12])
        folder = api.snapshot_download(
            model, revision=commit, cache_dir=cache, ignore_patterns=list(ignored)
        )
    log.info("weights %s at %s: complete in %s", model, commit[:12], folder)
    return Path(folder)


def cached_hub_folder(model: str, commit: str, cache: Path | None) -> Path:
    """Where `hub_folder` puts a commit's files, there or not; the hub is not asked."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder: str = repo_folder_name(repo_id=model, repo_type="model")
    return Path(cache or constants.HF_HUB_CACHE).expanduser() / folder / "snapshots" / commit


def _remove_leftovers(folder: Path) -> None:
    """Remove the parts of files that killed fetches have left: the next one goes on with none of them.

    Who still fetches a file holds the library's lock for it.
    """
    from filelock import FileLock, Timeout

    model = folder.parent.parent
    for part in (model / "blobs").glob("*.incomplete"):
        lock = model.parent / ".locks" / model.name / f"{part.name.partition('.')[0]}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with suppress(Timeout), FileLock(lock, timeout=0, mode=0o664):
            log.info("weights %s: removing what a killed fetch has left", part)
            part.unlink(missing_ok=True)


def _bytes_here(file: Any, folder: Path) -> int:
    """What of a file is on the disk, also while another process fetches it."""
    size = file.size or 0
    if (folder / file.rfilename).exists():
        return size
    blob = file.lfs.sha256 if file.lfs else file.blob_id
    here = 0
    for part in (folder.parent.parent / "blobs").glob(f"{blob}*"):
        with suppress(FileNotFoundError):  # it was named meanwhile
            here += part.stat().st_blocks * 512
    return min(size, here)


def _name_of(file: Any) -> str:
    return str(file.rfilename)


def ignored_files(names: Sequence[str]) -> tuple[str, ...]:
    """Patterns of files that an engine does not read, given all names of the model."""
    has_safetensors = any(name.endswith(".safetensors") for name in names)
    return (*_NOT_WANTED, *(_OTHER_WEIGHTS if has_safetensors else ()))


def _api(token: bool | None = None) -> Any:
    from huggingface_hub import HfApi

    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)


def _check_access(model: str, commit: str, token: bool | None = None) -> None:
    """Ask for a file: anybody may read about a gated model, and only its files are refused."""
    from huggingface_hub.errors import EntryNotFoundError

    api = _api(token)
    url = f"{api.endpoint}/{model}/resolve/{commit}/config.json"
    try:
        api.get_hf_file_metadata(url=url, timeout=_TIMEOUT_S)
    except EntryNotFoundError:  # some formats have none; the engine will say what it misses
        log.warning("model %s: it has no config.json", model)


@contextmanager
def _translated(model: str, revision: str) -> Iterator[None]:
    from httpx2 import TransportError
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
    )

    what = f"model {model}, revision {revision}"
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise ModelNotFound(
            f"{what}: HF_HUB_OFFLINE is set, so the hub is not asked; unset it, or give a folder as"
            " ./path or /path"
        ) from error
    except TransportError as error:
        raise StoreUnavailable(
            f"model {model}: the hub does not answer ({error}); without a network, give a model"
            " folder as ./path or /path"
        ) from error
    except HfHubHTTPError as error:
        raise _refused(error, model, revision) from error
    except (OSError, RuntimeError) as error:
        if getattr(error, "errno", None):  # the disk, not the hub
            raise SickMachine(f"{what}: {first_line(error)}") from error
        # a network that failed under the hub's library (OSError), or under its own for chunks (RuntimeError)
        raise StoreUnavailable(
            f"{what}: the hub did not give all files ({first_line(error)})"
        ) from error
    except (HFValidationError, ValueError) as error:
        raise ModelNotFound(
            f"{what}: the hub does not give it ({first_line(error)}); check the name, or give a"
            " folder as ./path or /path"
        ) from error


def _refused(error: Any, model: str, revision: str) -> ModelNotFound | StoreUnavailable:
    """What an answer of the hub means for the person who planned the job."""
    from huggingface_hub import errors, get_token

    what = f"model {model}, revision {revision}"
    status = error.response.status_code
    if status >= 500 or status in _LATER:
        return StoreUnavailable(f"{what}: the hub asks to come back later (status {status})")
    page = f"{_api().endpoint}/{model}"
    if isinstance(error, errors.GatedRepoError):
        whose = "the account of HF_TOKEN" if get_token() else "an account of yours"
        token = "" if get_token() else ", and set HF_TOKEN to a token of that account"
        return ModelNotFound(f"{what}: it is gated; accept its terms at {page} with {whose}{token}")
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelNotFound(
            f"model {model}: it has no revision {revision}; give a branch, tag or commit of {page}"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelNotFound(
            f"model {model}: the hub has no such model, or a private one; check the name, set"
            " HF_TOKEN if it is private, or give a folder as ./path or /path"
        )
    if status in (401, 403):
        return ModelNotFound(
            f"{what}: the hub refuses HF_TOKEN (status {status}); set one that is valid and may"
            " read this model"
        )
    return ModelNotFound(
        f"{what}: the hub does not give it (status {status}); check the name, or give a folder as"
        " ./path or /path"
    )
