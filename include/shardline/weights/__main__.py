"""`python -m shardline.weights`: have models on this machine before a worker needs them.

    --job {root}/jobs/{job_id}       the model of a planned job: an init container
    --model ID[@REVISION]            any model as it is today; may be repeated

Without either, the models of SHARDLINE_CACHED_MODELS: a DaemonSet. It ends when all are there: 0 done,
65 a model that cannot be had, 69 store or hub do not answer, 70 this machine's disk, 77 store refuses.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from shardline.errors import PermanentError, ShardlineError, SickMachine, StoreRefused
from shardline.job_blocks import EngineBlock
from shardline.models import pin_model
from shardline.plan import read_plan
from shardline.reasons import ExitCode
from shardline.store import open_store
from shardline.weights.cache import CacheSettings, local_model_folder

log = logging.getLogger("shardline.weights")

_CODES: tuple[tuple[type[ShardlineError], ExitCode], ...] = (
    (SickMachine, ExitCode.ENGINE_FAILED),
    (StoreRefused, ExitCode.STORE_REFUSED),
    (PermanentError, ExitCode.WRONG_INPUT),
    (ShardlineError, ExitCode.STORE_UNREACHABLE),
)


def main(arguments: Sequence[str] | None = None) -> ExitCode:
    """Fetch what was asked for; see the module."""
    given = _parse(arguments)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    try:
        for block, commit in _wanted(given):
            folder = local_model_folder(block, commit, given.cache)
            log.info("weights %s: %s", block.model, folder)
    except ShardlineError as error:
        log.error("weights: %s", error)
        return next(code for kind, code in _CODES if isinstance(error, kind))
    return ExitCode.DONE


def _wanted(given: argparse.Namespace) -> Iterator[tuple[EngineBlock, str]]:
    if given.job:
        root, _, job_id = given.job.rstrip("/").rpartition("/jobs/")
        plan = read_plan(open_store(root), job_id)
        if plan.job_file.engine.engine != "stub":
            yield plan.job_file.engine, plan.model_commit
    asked = bool(given.job or given.model)
    for model in given.model if asked else CacheSettings().cached_models:
        block = parse_model(model)
        yield block, pin_model(block)


def parse_model(text: str) -> EngineBlock:
    """`ID@REVISION` of the hub, or a folder; a name of a folder is a name, @ or not."""
    if "://" in text or text.startswith("/"):
        return EngineBlock(model=text)
    model, _, revision = text.partition("@")
    return EngineBlock(model=model, revision=revision or "main")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m shardline.weights",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--job", help="URI of a planned job: {root}/jobs/{job_id}")
    parser.add_argument("--model", action="append", default=[], help="hub id or s3:// folder")
    parser.add_argument("--cache", type=Path, help="the folder (default: SHARDLINE_MODEL_CACHE)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
