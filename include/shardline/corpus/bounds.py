"""Where buckets end: bounds of (length, hash prefix) that cut the request bytes evenly.

Equal requests have equal length and hash, so they meet in one bucket; lengths are sorted over all
buckets. A length that is too frequent for one bucket is split by its hash. The bounds are saved in
the plan: a retried scan fills the same buckets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardline.corpus.survey import Key

BUCKET_BYTES = 64 << 20
MAX_BUCKETS = 8_000

Bound = tuple[int, str]


def bucket_count(request_bytes: float) -> int:
    """How many buckets of about BUCKET_BYTES a job has; over MAX_BUCKETS they become larger."""
    return max(1, min(MAX_BUCKETS, math.ceil(request_bytes / BUCKET_BYTES)))


def choose_bounds(keys: Sequence[Key], buckets: int) -> list[Bound]:
    """Upper bounds of all buckets but the last, increasing; fewer where the keys are too few."""
    total = sum(key.weight * key.length for key in keys)
    bounds: list[Bound] = []
    seen = 0.0
    for key in sorted(keys, key=lambda k: (k.length, k.prefix)):
        seen += key.weight * key.length
        bound = (key.length, key.prefix)
        is_full = seen >= total * (len(bounds) + 1) / buckets
        if is_full and len(bounds) < buckets - 1 and (not bounds or bound > bounds[-1]):
            bounds.append(bound)
    return bounds
