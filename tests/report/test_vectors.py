"""What the report says of embeddings: their length and norms, and never the numbers as a sample."""

from __future__ import annotations

import base64
import math
from array import array
from pathlib import Path

import pyarrow as pa
import pytest

from shardline.report.histograms import scaled_histogram
from shardline.report.page import render_report
from shardline.report.samples import answer_text, document_text, last_text
from shardline.report.vectors import Norms, vector_text
from shardline.results.vectors import vector_type
from tests.factories import make_job
from tests.report.report_factory import make_report


def norms_of(vectors: list[list[float]], dimension: int) -> Norms:
    norms = Norms()
    norms.add(pa.array(vectors, vector_type(dimension)))
    return norms


def encoded(*numbers: float) -> str:
    return base64.b64encode(array("f", numbers).tobytes()).decode()


def test_norms_are_those_of_the_vectors() -> None:
    norms = norms_of([[3.0, 4.0], [0.0, 0.0]], 2)
    norms.add(pa.array([[0.0, 10.0]], vector_type(2)))
    norms.add(pa.array([], vector_type(2)))
    found = norms.figures()
    assert found is not None
    assert (found.dimension, found.least_norm, found.most_norm) == (2, 0, 10)
    assert found.mean_norm == pytest.approx(5)
    assert found.norms is not None
    assert sum(found.norms.counts) == 3
    assert found.norms.edges[-1] > 10


def test_vectors_of_which_only_some_rows_are_looked_at_are_counted_alone() -> None:
    column = pa.array([[1.0, 0.0], [100.0, 0.0], [2.0, 0.0]], vector_type(2))
    norms = Norms()
    norms.add(column.filter(pa.array([False, True, False])))
    norms.add(column.slice(2))
    found = norms.figures()
    assert found is not None
    assert (found.least_norm, found.most_norm) == (2, 100)


def test_unit_vectors_are_one_bin_and_no_vectors_are_no_figures() -> None:
    found = norms_of([[0.6, 0.8]] * 5, 2).figures()
    assert found is not None
    assert found.norms is not None
    assert found.norms.counts == [5]
    assert Norms().figures() is None


@pytest.mark.parametrize("scale", [1e-6, 0.02, 1.0, 30.0, 1e9])
def test_fractions_fall_into_bins_of_their_own_size(scale: float) -> None:
    found = scaled_histogram([(scale * n / 100, 1) for n in range(101)])
    assert found is not None
    assert sum(found.counts) == 101
    assert 10 < len(found.counts) < 30
    assert found.edges[0] <= 0
    assert found.edges[-1] > scale


def test_zeros_alone_are_a_histogram_too() -> None:
    found = scaled_histogram([(0.0, 3)])
    assert found is not None
    assert found.counts == [3]
    assert scaled_histogram([]) is None


def test_a_vector_in_short(tmp_path: Path) -> None:
    assert vector_text(encoded(0.6, -0.8)) == "2 numbers, norm 1.000: 0.6000, -0.8000"
    long = vector_text(encoded(*[1 / math.sqrt(384)] * 384))
    assert long.startswith("384 numbers, norm 1.000: 0.0510, 0.0510")
    assert long.endswith(", …")
    body = {"data": [{"embedding": encoded(1.0)}]}
    assert (
        answer_text(make_job(tmp_path, kind="embedding"), body) == "1 numbers, norm 1.000: 1.0000"
    )


def test_a_completion_is_shown_without_what_all_prompts_share(tmp_path: Path) -> None:
    job = make_job(tmp_path, kind="completion", prompt="Text: {{ a }}/{{ b }}\nSo:")
    assert answer_text(job, {"choices": [{"text": " it goes on"}]}) == " it goes on"
    assert document_text(job, last_text({"prompt": "Text: one/two\nSo:"})) == "one/two"


def test_the_page_shows_vectors_and_how_to_read_them() -> None:
    found = norms_of([[float(n), 0.0] for n in range(1, 60)], 2).figures()
    page = render_report(make_report(vectors=found, samples=[], answers=[], agreement=None))
    assert "Vectors" in page
    assert "1 to 59" in page
    assert "Norm of a vector" in page
    assert "SELECT document_id, output" in page
    assert "SELECT document_id, output" not in render_report(make_report())
