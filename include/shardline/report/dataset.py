"""Figures of the merged files: answers, labels, vectors, tokens. One pass, a batch at a time.

The files are read where merge wrote them, so a job that is not published yet has these figures too.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shardline.layout import published
from shardline.report.figures import Agreement, Answer, TokenFigures, VectorFigures
from shardline.report.histograms import make_histogram
from shardline.report.samples import label_text
from shardline.report.vectors import Norms
from shardline.shards.parquet import read_batches

if TYPE_CHECKING:
    from shardline.job import JobFile
    from shardline.plan import Plan
    from shardline.results.merge import MergeReport
    from shardline.store import Store

OTHER = "(other)"
_SHOWN_ANSWERS = 24
_SHOWN_LABELS = 12
_MAX_LABELS = 1_000
_USED = ("prompt_tokens", "completion_tokens", "finish_reason", "duplicate_of")


class DatasetFigures(NamedTuple):
    """What one pass over the merged files gives."""

    tokens: TokenFigures
    answers: list[Answer]
    answers_other: int
    agreement: Agreement | None
    vectors: VectorFigures | None


def read_dataset(store: Store, plan: Plan, merged: MergeReport) -> DatasetFigures:
    """Read the columns that the figures need from every merged file."""
    counts = _Counts(plan.job_file)
    for file in merged.files:
        with tempfile.TemporaryDirectory(prefix="shardline-") as scratch:
            path = f"{published(plan.job_file.table)}/{file.path}"
            for batch in read_batches(store.fetch(path, Path(scratch)), counts.columns):
                counts.add(batch)
    return counts.figures()


class _Counts:
    """Counters that grow with the number of different answers, never with the number of rows."""

    def __init__(self, job: JobFile) -> None:
        self.label = job.report.compare_with
        self.choices = job.output.choices
        # free text is only counted where it equals a label: there may be as many texts as rows
        self.has_words = self.choices is not None or bool(self.label and job.output.text)
        self.norms = Norms() if job.kind == "embedding" else None
        self.columns = [*_USED]
        self.columns += ["output"] if self.has_words or self.norms else []
        self.columns += [self.label] if self.label and self.label not in self.columns else []
        self.labels: set[str] = set()
        self.pairs: Counter[tuple[str | None, str]] = Counter()
        self.finish: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()
        self.results = self.prompt = 0

    def add(self, batch: Any) -> None:
        """Count one batch of a file."""
        import pyarrow.compute as pc

        paid = batch.filter(pc.is_null(batch.column("duplicate_of")))
        self.results += paid.num_rows
        self.prompt += pc.sum(paid.column("prompt_tokens")).as_py() or 0
        for length, n in _value_counts(paid.column("completion_tokens")):
            self.lengths[length or 0] += n
        if self.norms:
            self.norms.add(paid.column("output"))
            return  # nothing is written that could end
        for reason, n in _value_counts(paid.column("finish_reason")):
            self.finish[reason or "unknown"] += n
        if self.has_words:
            self._add_words(batch)

    def _add_words(self, batch: Any) -> None:
        outputs = batch.column("output").to_pylist()
        labels = batch.column(self.label).to_pylist() if self.label else [None] * len(outputs)
        said = [None if label is None else label_text(label) for label in labels]
        if len(self.labels) < _MAX_LABELS:
            self.labels.update(label for label in said if label is not None)
        known = self.choices or self.labels
        for output, label in zip(outputs, said, strict=True):
            shown = label if label is None or label in self.labels else OTHER
            self.pairs[shown, output if output in known else OTHER] += 1

    def figures(self) -> DatasetFigures:
        shown, other = self._answers()
        tokens = TokenFigures(
            prompt=self.prompt,
            completion=sum(length * n for length, n in self.lengths.items()),
            results=self.results,
            finish_reasons=dict(sorted(self.finish.items())),
            lengths=make_histogram(self.lengths.items()),
        )
        vectors = self.norms.figures() if self.norms else None
        return DatasetFigures(tokens, shown, other, self._agreement(), vectors)

    def _answers(self) -> tuple[list[Answer], int]:
        """Every choice of the job file, the ones that nobody got too."""
        if self.choices is None:
            return [], 0
        counted: Counter[str] = Counter(dict.fromkeys(self.choices, 0))
        for (_, output), n in self.pairs.items():
            counted[output] += n
        ranked = sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))
        ranked = [(value, n) for value, n in ranked if value != OTHER]
        rest = counted[OTHER] + sum(n for _, n in ranked[_SHOWN_ANSWERS:])
        return [Answer(value, n) for value, n in ranked[:_SHOWN_ANSWERS]], rest

    def _agreement(self) -> Agreement | None:
        if self.label is None or not self.has_words:
            return None
        pairs = {(said, out): n for (said, out), n in self.pairs.items() if said is not None}
        return fold_agreement(self.label, pairs)


def fold_agreement(column: str, pairs: dict[tuple[str, str], int]) -> Agreement:
    """The share of equal pairs, and the confusion table of the most frequent labels and outputs."""
    labels = _most(Counter(), pairs, 0)
    outputs = _most(Counter(), pairs, 1)
    table = [[0] * len(outputs) for _ in labels]
    for (label, output), n in pairs.items():
        row = labels.index(label if label in labels else OTHER)
        table[row][outputs.index(output if output in outputs else OTHER)] += n
    return Agreement(
        column=column,
        rows=sum(pairs.values()),
        equal=sum(n for (label, output), n in pairs.items() if label == output),
        labels=labels,
        outputs=outputs,
        table=table,
    )


def _most(counted: Counter[str], pairs: dict[tuple[str, str], int], side: int) -> list[str]:
    """The most frequent names of one side in alphabetical order, `(other)` last if there is one."""
    for pair, n in pairs.items():
        counted[pair[side]] += n
    named = [name for name, _ in counted.most_common() if name != OTHER]
    shown = sorted(sorted(named, key=lambda name: (-counted[name], name))[:_SHOWN_LABELS])
    has_other = OTHER in counted or len(named) > len(shown)
    return [*shown, OTHER] if has_other else shown


def _value_counts(column: Any) -> list[tuple[Any, int]]:
    import pyarrow.compute as pc

    return [(v["values"], v["counts"]) for v in pc.value_counts(column).to_pylist()]
