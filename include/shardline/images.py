"""The worker's image: a name that means the same tomorrow, or a clear word that it does not.

A tag can be moved to another image while a job runs, and then its shards are run by two programs. A
digest cannot: `registry/shardline-worker:0.1.0@sha256:…`.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from shardline.errors import WrongInput
from shardline.job import JobFile

log = logging.getLogger(__name__)

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]+)?/)?"
_IMAGE = re.compile(
    rf"(?P<name>{_HOST}{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
SETTING = "SHARDLINE_WORKER_IMAGE"


@dataclass(frozen=True)
class Image:
    """An image as a deployment names it."""

    reference: str
    tag: str | None
    digest: str | None

    @property
    def is_pinned(self) -> bool:
        """Whether it is the same image for ever."""
        return self.digest is not None


def parse_image(reference: str) -> Image:
    """Read `name[:tag][@sha256:…]`.

    Raises:
        WrongInput: it is no name of an image.
    """
    found = _IMAGE.fullmatch(reference)
    if found is None:
        raise WrongInput(
            f"{SETTING}: expected name:tag@sha256:(64 hex digits), found {reference!r}"
        )
    return Image(reference, found["tag"], found["digest"])


def pin_image(job: JobFile, reference: str | None) -> str | None:
    """The image that the plan of a job keeps; None where it runs in no pod.

    Raises:
        WrongInput: as worker_image.
    """
    if job.run_on != "gpu":
        return None
    image = worker_image(reference)
    if not image.is_pinned:
        log.warning(
            "%s: %s has no digest, so whoever moves its tag changes this job; give it as %s@sha256:…",
            SETTING,
            image.reference,
            image.reference,
        )
    return image.reference


def worker_image(reference: str | None) -> Image:
    """The image that the pods of a job run.

    Raises:
        WrongInput: there is none, it is no name, or its tag is one that moves with every build.
    """
    if not reference:
        raise WrongInput(f"{SETTING}: expected the image of the worker, since run_on is gpu")
    image = parse_image(reference)
    if not image.is_pinned and image.tag in (None, "latest"):
        raise WrongInput(
            f"{SETTING}: {reference} is another image after the next build; name a version, or"
            " better its digest, as name:tag@sha256:…"
        )
    return image
