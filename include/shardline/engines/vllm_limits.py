"""How many requests and tokens a step of the engine may hold, by accelerator and size of the model.

Too few slots leave a GPU idle; more than its cache can hold are preempted and computed again. Both
numbers are always given to vLLM: what it takes without them depends on how it is called.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_GIB = 1024**3
_USED = 0.9  # vLLM's gpu_memory_utilization, unless a job says otherwise
_TOKENS = 512  # prompt and answer of the request that slots are counted for
_FEWEST = 32

# Cache per token in 16 bits: 2 x layers x key/value heads x width of a head x 2 bytes, from the
# published config.json of Qwen2.5-0.5B, Qwen2.5-1.5B, Qwen3-4B, Llama-3.1-8B, Qwen3-14B, Qwen3-32B
# and Llama-3.1-70B: (billion parameters up to which it is taken, KiB).
_CACHE_KIB = ((1.0, 12), (2.0, 28), (5.0, 144), (10.0, 128), (20.0, 160), (40.0, 256))
_CACHE_KIB_BEYOND = 320

_PARAMETERS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z0-9])", re.IGNORECASE)
_QUARTER = re.compile(r"awq|gptq|int4|4bit|w4a16|nvfp4|mxfp4", re.IGNORECASE)
_HALF = re.compile(r"fp8|int8|8bit|w8a8", re.IGNORECASE)


class Limits(NamedTuple):
    """vLLM's arguments of the same names."""

    max_num_seqs: int
    max_num_batched_tokens: int


class Gpu(NamedTuple):
    """One GPU, as its driver names it."""

    name: str
    memory_gib: float


CPU = Limits(32, 2048)
"""Measured on two cores with a model of 135 million parameters; its own default is 128 and 2048."""


def limits(gpu: Gpu | None, model: str, gpus: int = 1) -> Limits:
    """The limits for a model (by its name) on GPUs that share its weights; None: an unknown one.

    The classes of GPU and their numbers are those of vLLM for offline use
    (`EngineArgs.get_batch_defaults`, LLM_CLASS): 1024 requests and 16384 tokens from 70 GiB on (H100,
    H200, B200), 256 and 8192 below (T4, A10, L4, L40S), and for an A100, which large steps slow down
    (vLLM's pull request 17885). More than 8192 tokens is also what its guide "Optimization and
    Tuning" recommends for throughput on large GPUs. Where the model's name tells its size, there are
    no more slots than requests of 512 tokens whose cache fits beside the weights.
    """
    is_large = gpu is not None and gpu.memory_gib >= 70 and "a100" not in gpu.name.lower()
    usual = Limits(1024, 16384) if is_large else Limits(256, 8192)
    billions = parameters_in_billions(model)
    if gpu is None or billions is None:
        return usual
    weights = billions * 1e9 * _bytes_per_parameter(model)
    room = _USED * gpu.memory_gib * _GIB * gpus - weights
    fitting = int(room / (_cache_kib(billions) * 1024 * _TOKENS))
    slots = max(_FEWEST, min(usual.max_num_seqs, fitting // _FEWEST * _FEWEST))
    return usual._replace(max_num_seqs=slots)


def parameters_in_billions(model: str) -> float | None:
    """The size that a model's name tells, e.g. 8.0 for Qwen/Qwen3-8B; None where it tells none."""
    found = _PARAMETERS.findall(re.sub(r"[-_/]", " ", model))
    return float(found[0]) if found else None


def find_gpu() -> Gpu | None:
    """The first GPU of this machine, asked of its driver; CUDA is not started in this process."""
    try:
        from vllm.third_party import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - no driver, no library, another kind of accelerator
        return None
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        name = str(pynvml.nvmlDeviceGetName(handle))
        return Gpu(name, pynvml.nvmlDeviceGetMemoryInfo(handle).total / _GIB)
    finally:
        pynvml.nvmlShutdown()


def _bytes_per_parameter(model: str) -> float:
    if _QUARTER.search(model):
        return 0.5
    return 1.0 if _HALF.search(model) else 2.0


def _cache_kib(billions: float) -> int:
    return next((kib for up_to, kib in _CACHE_KIB if billions <= up_to), _CACHE_KIB_BEYOND)
