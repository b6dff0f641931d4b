"""Great Expectations, and nothing else of ours: rules over small frames, judged and written up.

It enters the project here. Its analytics, progress bars and warnings are switched off, and it works
in a folder of its own, so that nothing of it is left behind but the pages of its Data Docs.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

_PAGES = Path("gx/uncommitted/data_docs/local_site")


class Rule(NamedTuple):
    """Every value of a column lies between `least` and `most`. `says` is read by people."""

    column: str
    says: str
    least: float = 0
    most: float | None = 0


class Broken(NamedTuple):
    """A rule that does not hold: what was seen, and in which rows of the frame."""

    rule: Rule
    observed: list[Any]
    rows: list[int]


def judge(
    frames: Mapping[str, tuple[Mapping[str, list[Any]], Sequence[Rule]]], folder: Path
) -> tuple[list[Broken], Path]:
    """Judge each named frame by its rules; returns what is broken and the folder of Data Docs.

    Everything is written below `folder`, which should go away afterwards.
    """
    with _quiet():
        import great_expectations as gx

        context = gx.get_context(mode="file", project_root_dir=folder)
        context.variables.progress_bars = {"globally": False}
        source = context.data_sources.add_pandas("merged")
        broken: list[Broken] = []
        for name, (columns, rules) in frames.items():
            broken += _judge_frame(context, source, name, columns, rules)
        context.build_data_docs()
    return broken, folder / _PAGES


def _judge_frame(
    context: Any, source: Any, name: str, columns: Mapping[str, list[Any]], rules: Sequence[Rule]
) -> list[Broken]:
    import great_expectations as gx
    import great_expectations.expectations as gxe
    import pandas as pd

    expectations = [
        gxe.ExpectColumnValuesToBeBetween(
            column=rule.column, min_value=rule.least, max_value=rule.most, description=rule.says
        )
        for rule in rules
    ]
    suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=expectations))
    batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all")
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(name=name, data=batch, suite=suite)
    )
    checkpoint = gx.Checkpoint(name=name, validation_definitions=[definition], actions=[])
    frame = pd.DataFrame(dict(columns))
    run = checkpoint.run(batch_parameters={"dataframe": frame})
    (outcome,) = run.run_results.values()
    by_column = {rule.column: rule for rule in rules}
    return [
        _broken(by_column[result.expectation_config.kwargs["column"]], columns)
        for result in outcome.results
        if not result.success
    ]


def _broken(rule: Rule, columns: Mapping[str, list[Any]]) -> Broken:
    most = float("inf") if rule.most is None else rule.most
    values = list(enumerate(columns[rule.column]))
    rows = [row for row, value in values if not rule.least <= value <= most]
    return Broken(rule, [columns[rule.column][row] for row in rows], rows)


@contextmanager
def _quiet() -> Iterator[None]:
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    logger = logging.getLogger("great_expectations")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        # its own dependencies' deprecations are no concern of who runs a job
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
