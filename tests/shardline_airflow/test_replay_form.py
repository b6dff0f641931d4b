"""The form of a replay, and what a run of it asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardline.errors import NotAllowed
from shardline_airflow.replay_form import replay_form, wish_of


def test_the_replay_form_means_a_wish(tmp_path: Path) -> None:
    wish = wish_of(
        {
            "job": "reviews",
            "reasons": ["truncated"],
            "max_tokens": 99,
            "parameters": {"seed": 1},
            "model": "./other",
            "engine_args": {"max_model_len": 8},
            "keep_truncated": True,
            "max_dead": 0,
        },
        tmp_path,
        "local",
    )
    assert (wish.reasons, wish.folder) == (("truncated",), tmp_path)
    assert wish.changes == {
        "parameters.max_tokens": 99,
        "parameters.seed": 1,
        "local.model": "./other",
        "local.engine_args.max_model_len": 8,
        "output.truncated": "keep",
        "limits.max_dead": 0,
    }


def test_a_replay_form_that_is_left_alone_changes_nothing(tmp_path: Path) -> None:
    untouched = {name: param.value for name, param in replay_form().items() if name != "job"}
    wish = wish_of(untouched, tmp_path, "local")
    assert (wish.reasons, wish.changes) == ((), {})


@pytest.mark.protocol(24)
def test_a_replay_form_may_not_set_every_engine_argument(tmp_path: Path) -> None:
    with pytest.raises(NotAllowed, match=r"conf\.engine_args: local\.engine_args\.trust"):
        wish_of({"engine_args": {"trust_remote_code": True}}, tmp_path, "local")
