from pathlib import Path

import pytest

from shardline.engines.vllm_config import cpu_dtype, default_args, default_env
from shardline.engines.vllm_limits import Gpu
from shardline.job_blocks import EngineBlock


@pytest.mark.parametrize("is_cpu", [True, False])
def test_the_slots_and_the_tokens_of_a_step_are_always_explicit(is_cpu: bool) -> None:
    args = default_args(EngineBlock(model="a/b"), "job", is_cpu=is_cpu)
    assert args["max_num_seqs"] > 0
    assert args["max_num_batched_tokens"] >= args["max_num_seqs"]


def test_the_gpu_and_the_model_decide_both() -> None:
    h100 = Gpu("NVIDIA H100 80GB HBM3", 79.6)
    block = EngineBlock(model="Qwen/Qwen3-32B", engine_args={"tensor_parallel_size": 4})
    args = default_args(block, "job", is_cpu=False, gpu=h100)
    assert (args["max_num_seqs"], args["max_num_batched_tokens"]) == (1024, 16384)
    alone = default_args(EngineBlock(model="Qwen/Qwen3-32B"), "job", is_cpu=False, gpu=h100)
    assert alone["max_num_seqs"] < 1024


def test_the_model_is_served_as_the_job() -> None:
    args = default_args(EngineBlock(model="a/b"), "job", is_cpu=False)
    assert args["served_model_name"] == "job"


def test_a_cpu_is_a_configuration() -> None:
    args = default_args(EngineBlock(model="a/b"), "job", is_cpu=True)
    assert (args["enforce_eager"], args["block_size"]) == (True, 32)
    assert "VLLM_CPU_KVCACHE_SPACE" in default_env(is_cpu=True)
    assert "VLLM_CPU_KVCACHE_SPACE" not in default_env(is_cpu=False)


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        ("fpu avx2 avx512f avx512_bf16 avx512_fp16", "float16"),
        ("fpu avx2 avx512f avx512_bf16", "bfloat16"),
        ("fpu avx2 f16c", "float32"),
    ],
)
def test_the_number_type_is_what_the_processor_is_fast_at(
    tmp_path: Path, flags: str, dtype: str
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nflags : {flags}\n")
    assert cpu_dtype(cpuinfo) == dtype


def test_a_machine_that_does_not_say_gets_the_type_that_always_works(tmp_path: Path) -> None:
    assert cpu_dtype(tmp_path / "missing") == "float32"


def test_a_model_is_loaded_for_what_the_job_asks_of_it() -> None:
    block = EngineBlock(model="a/b")
    embedding = default_args(block, "job", is_cpu=True, kind="embedding")
    assert embedding["runner"] == "pooling"
    assert "enable_prefix_caching" not in embedding
    for kind in ("chat", "completion"):
        args = default_args(block, "job", is_cpu=True, kind=kind)
        assert (args["runner"], args["enable_prefix_caching"]) == ("generate", True)
