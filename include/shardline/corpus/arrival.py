"""Whether a corpus is complete: its writer puts an object (`_SUCCESS`) when all else is there.

A job that is planned before that works on a part of the day, and nobody sees it.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardline.corpus.inputs import check_local_allowed, check_s3_allowed
from shardline.corpus.sources import bucket_store, split_s3
from shardline.errors import CorpusError, StoreRefused
from shardline.store import folder_of


def check_arrived(uri: str | None, prefixes: Sequence[str] = ()) -> None:
    """Refuse a corpus whose object of `corpus.wait_for` is not there; None: nothing is waited for.

    Raises:
        CorpusError: it has not arrived. NotAllowed: it lies outside `prefixes`.
        StoreRefused: no permission. StoreUnavailable: the store does not answer.
    """
    if uri is not None and not has_arrived(uri, prefixes):
        raise CorpusError(
            f"corpus.wait_for: {uri} is not there, so the corpus is not complete; start the job when"
            " it is (a scheduled job waits for it)"
        )


def has_arrived(uri: str, prefixes: Sequence[str] = ()) -> bool:
    """Whether the object is there now."""
    if uri.startswith("s3://"):
        check_s3_allowed(uri, prefixes)
        bucket, key = split_s3(uri)
        return bucket_store(bucket).exists(key)
    path = folder_of(uri)
    assert path is not None, uri
    check_local_allowed(uri, path.as_posix(), prefixes)
    try:
        return path.exists()
    except OSError as error:
        raise StoreRefused(f"corpus.wait_for: {uri} ({error.strerror or error})") from error
