"""Ask Linux for AMX tiles before vLLM uses them.

vLLM's CPU attention uses AMX for bfloat16 without asking (arch_prctl ARCH_REQ_XCOMP_PERM): on a
machine with AMX the engine's worker process then dies of SIGILL. vLLM calls this in each of its
processes (entry point in pyproject.toml); without AMX, or with a GPU, it does nothing.
"""

from __future__ import annotations


def request_amx() -> None:
    """Call once per process, before the model runs."""
    import torch

    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()
