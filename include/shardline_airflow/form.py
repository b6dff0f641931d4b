"""The trigger form: its fields, and how a run's parameters become a job.

A job comes from one of the job files, with a few fields changed, or whole from the run's conf. What
a person types into a form must not become code in our processes, so engine arguments of a job from
conf are on a list (PROTOCOL 24); a job file in the folder was reviewed and may say more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import Param

from shardline.errors import FieldProblem, JobFileError, NotAllowed, WrongInput
from shardline.job import JobFile
from shardline.job_reader import load_job, parse_job

ALLOWED_ENGINE_ARGS = frozenset(
    {
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "dtype",
        "quantization",
        "kv_cache_dtype",
        "gpu_memory_utilization",
        "tensor_parallel_size",
        "enable_prefix_caching",
        "enforce_eager",
        "seed",
        "latency_s",
        "start_s",
    }
)
_OVERRIDES = {
    "max_tokens": "parameters.max_tokens",
    "max_rejected": "limits.max_rejected",
    "max_dead": "limits.max_dead",
    "rerun": "rerun",
}


def job_files(folder: Path) -> list[str]:
    """Names of the job files that the form offers."""
    return sorted(p.name for p in folder.glob("*.yaml"))


def form(folder: Path) -> dict[str, Param]:
    """All fields of the form that starts any job. It opens with a chat that needs no partition."""
    names = job_files(folder)
    first = sorted(names, key=lambda name: _is_special(folder / name))[:1]
    return {
        "job_file": Param(
            first[0] if first else None,
            type=["null", "string"],
            enum=[None, *names],
            title="Job file",
            description=f"What to run: a file of {folder.name}/ with corpus, question and model.",
            section="Job",
        ),
        "job": Param(
            None,
            type=["null", "object"],
            title="Whole job",
            description="Instead of a job file: the same fields as an object. Relative paths start "
            "at the folder of the job files.",
            section="Job",
        ),
        **run_fields(),
        **override_fields(),
    }


def _is_special(path: Path) -> bool:
    # by its text: the form must come up whatever is wrong in a job file
    text = path.read_bytes()
    return b"\nschedule:" in text or b"\nkind:" in text


def run_fields() -> dict[str, Param]:
    """Fields that every dag of a job has: which data, and how to publish."""
    return {
        "partition": Param(
            None,
            type=["null", "string"],
            format="date",
            title="Partition",
            description="The date that stands for {{ partition }} in the corpus. A run with a "
            "partition key uses that key instead.",
            section="Data",
        ),
        "rerun": Param(
            None,
            type=["null", "integer"],
            minimum=0,
            maximum=2**31 - 1,
            title="Rerun",
            description="A number higher than the job file's: everything runs again, as another job.",
            section="Again",
        ),
        "force_publish": Param(
            False,
            type="boolean",
            title="Force publishing",
            description="Publish even when a job that was planned later is the current one.",
            section="Again",
        ),
    }


def override_fields() -> dict[str, Param]:
    """Fields of the job file that a run may change. Empty: as the job file says."""
    share = {"type": ["null", "number"], "minimum": 0, "maximum": 1, "section": "Limits"}
    return {
        "sample_rows": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            maximum=100_000_000,
            title="Sample rows",
            description="Run this many documents only, published as NAME__sample.",
            section="Data",
        ),
        "sample_seed": Param(
            0,
            type="integer",
            minimum=0,
            maximum=2**31 - 1,
            title="Sample seed",
            description="Another seed takes other documents. Used with sample rows only.",
            section="Data",
        ),
        "model": Param(
            None,
            type=["null", "string"],
            minLength=1,
            maxLength=500,
            title="Model",
            description="A hub id, or a folder (absolute, or relative to the job files with ./).",
            section="Model",
        ),
        "max_tokens": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            maximum=1_000_000,
            title="Max tokens",
            description="The longest answer, in tokens. Embeddings have none.",
            section="Model",
        ),
        "max_rejected": Param(
            None,
            title="Max rejected",
            description="Share of rows that may be no document (bad JSON, no text) before it stops.",
            **share,
        ),
        "max_dead": Param(
            None,
            title="Max dead",
            description="Share of rows that may end without an answer before it stops.",
            **share,
        ),
    }


def overrides(params: Mapping[str, Any], run_on: str = "local") -> dict[str, Any]:
    """The fields of the job file that the form changes, by dotted name.

    Args:
        run_on: the job's runner: the model stands in its block.
    """
    changed = {
        field: params[name] for name, field in _OVERRIDES.items() if params.get(name) is not None
    }
    if params.get("model") is not None:
        changed[f"{run_on}.model"] = params["model"]
    if params.get("sample_rows") is not None:
        sample = {"rows": params["sample_rows"], "seed": params.get("sample_seed") or 0}
        changed["corpus.sample"] = sample
    return changed


def job_of(params: Mapping[str, Any], folder: Path) -> JobFile:
    """The job that a run's parameters mean.

    Raises:
        WrongInput: no job at all, an unknown job file, or fields that are wrong.
        NotAllowed: an engine argument that a job from conf may not set.
    """
    if params.get("job") is not None:
        given = params["job"]
        run_on = str(given.get("run_on", "local")) if isinstance(given, dict) else "local"
        changes = overrides(params, run_on)
        job = parse_job(given, folder=folder, where="conf.job", overrides=changes)
        check_engine_args(job)
        return job
    name = params.get("job_file")
    if not name:
        raise WrongInput("no job: choose a job file, or give the whole job as `job`")
    path = find_job_file(str(name), folder)
    return load_job(path, overrides(params, load_job(path).run_on))


def find_job_file(name: str, folder: Path) -> Path:
    """The path of a job file, which must lie in the folder itself.

    Raises:
        JobFileError: there is no such file in it.
    """
    if name not in job_files(folder):
        known = ", ".join(job_files(folder)) or "none"
        problem = FieldProblem("", f"no such job file in {folder}; there are: {known}")
        raise JobFileError(name, [problem])
    return folder / name


def check_engine_args(job: JobFile) -> None:
    """Raise NotAllowed for an engine argument that is not on the list."""
    check_names(job.engine.engine_args, f"conf.job: {job.run_on}")


def check_names(engine_args: Iterable[str], where: str) -> None:
    """Raise NotAllowed for a name of an engine argument that is not on the list."""
    refused = sorted(set(engine_args) - ALLOWED_ENGINE_ARGS)
    if refused:
        raise NotAllowed(
            f"{where}.engine_args.{refused[0]}: not allowed in a job from conf; "
            f"allowed are {', '.join(sorted(ALLOWED_ENGINE_ARGS))} (or use a job file)"
        )
