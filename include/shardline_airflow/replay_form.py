"""The form that runs dead letters again, and what a run of it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import Param

from shardline.layout import SLUG
from shardline.reasons import DeadLetterReason
from shardline.results.wish import Wish
from shardline_airflow.form import check_names, override_fields


def replay_form() -> dict[str, Param]:
    """All fields of the form that runs dead letters again."""
    changed = override_fields()
    return {
        "job": Param(
            type="string",
            pattern=f"^{SLUG.pattern}$",
            title="Job",
            description="A job's id, or its name: then its newest job.",
            section="Job",
        ),
        "reasons": Param(
            [],
            type="array",
            items={"type": "string", "enum": [reason.value for reason in DeadLetterReason]},
            examples=[reason.value for reason in DeadLetterReason],
            title="Reasons",
            description="Which dead letters. None chosen: all that may do better when they run "
            "again, and with other settings all there are.",
            section="Job",
        ),
        "max_tokens": changed["max_tokens"],
        "parameters": Param(
            None,
            type=["null", "object"],
            title="Parameters",
            description='Other parameters of Chat Completions, e.g. {"temperature": 0.2}.',
            section="Model",
        ),
        "model": changed["model"],
        "engine_args": Param(
            None,
            type=["null", "object"],
            title="Engine arguments",
            description='Other arguments of the engine, e.g. {"max_model_len": 8192}.',
            section="Model",
        ),
        "keep_truncated": Param(
            False,
            type="boolean",
            title="Keep truncated",
            description="Take an answer that was cut at max_tokens as a result this time.",
            section="Model",
        ),
        "max_dead": changed["max_dead"],
    }


def wish_of(params: Mapping[str, Any], folder: Path, run_on: str) -> Wish:
    """What a run of the replay form asks for.

    Raises:
        NotAllowed: an engine argument that a form may not set.
    """
    arguments = params.get("engine_args") or {}
    check_names(arguments, f"conf.engine_args: {run_on}")
    changes = {
        f"parameters.{name}": value for name, value in (params.get("parameters") or {}).items()
    }
    changes |= {f"{run_on}.engine_args.{name}": value for name, value in arguments.items()}
    given = {
        "parameters.max_tokens": params.get("max_tokens"),
        f"{run_on}.model": params.get("model"),
        "limits.max_dead": params.get("max_dead"),
        "output.truncated": "keep" if params.get("keep_truncated") else None,
    }
    changes |= {field: value for field, value in given.items() if value is not None}
    return Wish(tuple(params.get("reasons") or ()), changes, folder)
