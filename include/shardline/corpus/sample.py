"""Which documents a sample takes: those with the smallest key, on any number of workers."""

from __future__ import annotations

from blake3 import blake3

KEY_BYTES = 16


def sample_key(seed: int, source: str, row: int) -> bytes:
    """blake3-128 of seed, source and row; the n documents with the smallest keys are the sample."""
    return blake3(f"{seed}\0{source}\0{row}".encode()).digest(KEY_BYTES)
