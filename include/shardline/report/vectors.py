"""Figures of embeddings: how long the vectors are, and how their norms are spread.

A model whose vectors all have the norm 1 can be compared by dot products; zeros or a wide spread say
that something is wrong long before a search does.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from typing import TYPE_CHECKING, Any

from shardline.report.figures import VectorFigures
from shardline.report.histograms import scaled_histogram
from shardline.results.vectors import decode_vector

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_SHOWN_NUMBERS = 4


class Norms:
    """Counts norms by three digits, so that it stays small whatever the number of rows."""

    def __init__(self) -> None:
        self._counted: Counter[float] = Counter()
        self._rows, self._sum, self._dimension = 0, 0.0, 0
        self._least, self._most = math.inf, 0.0

    def add(self, vectors: Any) -> None:
        """Add an Arrow column of vectors of one length, without nulls."""
        if not len(vectors):
            return
        norms = _norms(vectors)
        self._dimension = len(vectors.flatten()) // len(vectors)
        self._rows += len(norms)
        self._sum += float(norms.sum())
        self._least = min(self._least, float(norms.min()))
        self._most = max(self._most, float(norms.max()))
        self._counted.update(float(f"{norm:.3g}") for norm in norms.tolist())

    def figures(self) -> VectorFigures | None:
        """None without any vector."""
        if not self._rows:
            return None
        return VectorFigures(
            dimension=self._dimension,
            least_norm=self._least,
            mean_norm=self._sum / self._rows,
            most_norm=self._most,
            norms=scaled_histogram(self._counted.items()),
        )


def _norms(vectors: Any) -> npt.NDArray[np.float64]:
    import numpy as np

    numbers = vectors.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    rows = numbers.reshape(len(vectors), -1)
    norms: npt.NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return norms


def vector_text(encoded: str) -> str:
    """A vector in short, for a screen: `384 numbers, norm 1.000: 0.0123, -0.0456, …`."""
    numbers = array("f", decode_vector(encoded, None))
    shown = ", ".join(f"{number:.4f}" for number in numbers[:_SHOWN_NUMBERS])
    more = ", …" if len(numbers) > _SHOWN_NUMBERS else ""
    return f"{len(numbers):,} numbers, norm {math.hypot(*numbers):.3f}: {shown}{more}"
