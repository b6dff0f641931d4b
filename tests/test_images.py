"""A job's pods run one image: its name is checked when the job is planned."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shardline.corpus.plan_job import plan_job
from shardline.errors import WrongInput
from shardline.images import parse_image, pin_image, worker_image
from shardline.job import JobFile
from shardline.plan import Plan
from shardline.settings import Settings
from tests.corpus.prepared import NOW
from tests.factories import make_job, make_rows, make_store, write_corpus

DIGEST = "sha256:" + "0123456789abcdef" * 4
PINNED = f"registry.example:5000/team/shardline-worker:0.1.0@{DIGEST}"


@pytest.mark.parametrize(
    ("reference", "tag", "digest"),
    [
        ("shardline-worker:0.1.0", "0.1.0", None),
        ("localhost:5000/shardline-worker", None, None),
        ("ghcr.io/team/worker:v1", "v1", None),
        (f"worker@{DIGEST}", None, DIGEST),
        (PINNED, "0.1.0", DIGEST),
    ],
)
def test_a_reference_is_name_tag_and_digest(
    reference: str, tag: str | None, digest: str | None
) -> None:
    image = parse_image(reference)
    assert (image.tag, image.digest, image.is_pinned) == (tag, digest, digest is not None)


@pytest.mark.parametrize(
    "reference", ["Worker:1", "worker:", "worker@sha256:0123", "worker:1 ", "https://host/worker:1"]
)
def test_what_is_no_image_is_named(reference: str) -> None:
    with pytest.raises(WrongInput, match="SHARDLINE_WORKER_IMAGE: expected name:tag@sha256"):
        worker_image(reference)


@pytest.mark.parametrize("reference", ["worker", "worker:latest", "host:5000/worker"])
def test_a_tag_that_moves_is_refused(reference: str) -> None:
    with pytest.raises(WrongInput, match="is another image after the next build"):
        worker_image(reference)


def test_latest_with_a_digest_is_one_image() -> None:
    assert worker_image(f"worker:latest@{DIGEST}").is_pinned


def test_a_missing_image_names_the_setting() -> None:
    with pytest.raises(WrongInput, match="SHARDLINE_WORKER_IMAGE: expected the image"):
        worker_image(None)


def on_gpu(job: JobFile) -> JobFile:
    return job.model_copy(update={"run_on": "gpu", "gpu": job.local})


def plan_of(folder: Path, image: str | None, *, gpu: bool = True) -> Plan:
    if not (folder / "corpus").exists():
        write_corpus(folder, make_rows(2))
    job = make_job(folder)
    return plan_job(
        on_gpu(job) if gpu else job,
        store=make_store(folder),
        settings=Settings(worker_image=image),
        partition=None,
        now=NOW,
    )


def test_the_plan_holds_the_image_of_a_job_on_gpus(tmp_path: Path) -> None:
    assert plan_of(tmp_path, PINNED).worker_image == PINNED


def test_a_later_start_brings_a_later_image(tmp_path: Path) -> None:
    first = plan_of(tmp_path, "worker:1")
    later = plan_of(tmp_path, PINNED)
    assert later.job_id == first.job_id
    assert later.worker_image == PINNED
    assert plan_of(tmp_path, "worker:1").worker_image == "worker:1"


def test_a_job_on_this_machine_needs_no_image(tmp_path: Path) -> None:
    assert plan_of(tmp_path, "nonsense:", gpu=False).worker_image is None


def test_a_plan_from_before_images_is_still_read() -> None:
    old = Plan("a", {}, None, "", "", [], [], [], [], [], "0")
    encoded = msgspec.json.encode(
        {k: v for k, v in msgspec.to_builtins(old).items() if k != "worker_image"}
    )
    assert msgspec.json.decode(encoded, type=Plan) == old


def test_without_a_gpu_there_is_nothing_to_pin(tmp_path: Path) -> None:
    assert pin_image(make_job(tmp_path), None) is None
