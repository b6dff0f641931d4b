"""How much an engine runs at once, when an earlier attempt ran out of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardline.engines import engine_maker
from tests.factories import make_job
from tests.worker.prepared import make_plan


@pytest.mark.parametrize(
    ("given", "bound", "slots"), [(16, None, 16), (16, 4, 4), (2, 4, 2), (None, 4, 4)]
)
def test_the_bound_only_lowers_what_the_job_file_says(
    tmp_path: Path, given: int | None, bound: int | None, slots: int
) -> None:
    arguments = {} if given is None else {"max_num_seqs": given}
    engine = {"model": "stub", "engine": "stub", "engine_args": arguments}
    plan = make_plan(make_job(tmp_path, local=engine))
    assert engine_maker(plan, bound)().max_num_seqs == slots
