import pytest

from shardline.engines.vllm_limits import Gpu, Limits, find_gpu, limits, parameters_in_billions

H100 = Gpu("NVIDIA H100 80GB HBM3", 79.6)
H200 = Gpu("NVIDIA H200", 140.4)
B200 = Gpu("NVIDIA B200", 179.1)
A100 = Gpu("NVIDIA A100-SXM4-80GB", 80.0)
L4 = Gpu("NVIDIA L4", 22.5)
T4 = Gpu("Tesla T4", 15.0)


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (H100, (1024, 16384)),
        (H200, (1024, 16384)),
        (B200, (1024, 16384)),
        (A100, (256, 8192)),
        (L4, (256, 8192)),
        (T4, (256, 8192)),
        (None, (256, 8192)),
    ],
)
def test_a_small_model_gets_what_vllm_takes_offline(
    gpu: Gpu | None, expected: tuple[int, int]
) -> None:
    assert limits(gpu, "Qwen/Qwen2.5-0.5B-Instruct") == expected
    assert limits(gpu, "/models/mine") == expected  # no size in its name


def test_there_are_no_more_slots_than_the_cache_holds_beside_the_weights() -> None:
    assert limits(L4, "meta-llama/Llama-3.1-8B-Instruct").max_num_seqs == 64
    assert limits(H100, "Qwen/Qwen3-32B").max_num_seqs == 96
    assert limits(H200, "Qwen/Qwen3-32B").max_num_seqs == 512
    assert limits(T4, "Qwen/Qwen3-8B") == Limits(32, 8192)  # it does not even fit


def test_more_gpus_and_smaller_numbers_make_room() -> None:
    one = limits(H100, "meta-llama/Llama-3.1-70B-Instruct")
    four = limits(H100, "meta-llama/Llama-3.1-70B-Instruct", gpus=4)
    assert (one.max_num_seqs, four.max_num_seqs) == (32, 992)
    plain, half, quarter = (
        limits(L4, f"org/Model-8B{suffix}").max_num_seqs for suffix in ("", "-FP8", "-AWQ")
    )
    assert plain < half < quarter


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("Qwen/Qwen3-8B", 8.0),
        ("Qwen/Qwen2.5-0.5B-Instruct", 0.5),
        ("meta-llama/Llama-3.3-70B-Instruct", 70.0),
        ("s3://models/gemma-3-27b-it", 27.0),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", None),
        ("org/model-4bit", None),
        ("org/v2b1-model", None),
    ],
)
def test_the_size_is_read_from_the_name(model: str, billions: float | None) -> None:
    assert parameters_in_billions(model) == billions


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_machine_without_a_gpu_has_none() -> None:
    assert find_gpu() is None
