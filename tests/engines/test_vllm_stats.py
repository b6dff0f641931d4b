"""What an attempt's record says of its engines, from what each step of them says."""

from types import SimpleNamespace
from typing import Any

from shardline.engines.vllm_stats import Counters


def scheduler(running: int, usage: float = 0.0, queries: int = 0, hits: int = 0) -> Any:
    cache = SimpleNamespace(queries=queries, hits=hits)
    return SimpleNamespace(num_running_reqs=running, kv_cache_usage=usage, prefix_cache_stats=cache)


def iteration(prompt: int = 0, cached: int = 0, generated: int = 0, preempted: int = 0) -> Any:
    return SimpleNamespace(
        prompt_token_stats=SimpleNamespace(total=prompt, cached_tokens=cached),
        num_generation_tokens=generated,
        num_preempted_reqs=preempted,
    )


def test_steps_of_one_engine_after_another_add_up() -> None:
    counters = Counters()
    counters.add(scheduler(2, 0.5, queries=100, hits=64), iteration(100, 64, 2))
    counters.add(scheduler(2, 0.25), iteration(generated=2, preempted=1))  # another engine's
    metrics = counters.metrics(8)
    assert (metrics.engine_steps, metrics.preemptions, metrics.max_num_seqs) == (2, 1, 8)
    assert (metrics.prefix_cache_queries, metrics.prefix_cache_hits) == (100, 64)
    assert (metrics.prompt_tokens_computed, metrics.prompt_tokens_cached) == (36, 64)


def test_the_cache_in_use_is_that_of_the_last_step_with_work() -> None:
    counters = Counters()
    counters.add(scheduler(3, 0.5), iteration(generated=3))
    counters.add(scheduler(0, 0.0), None)
    assert counters.metrics(8).kv_cache_usage == 0.5


def test_a_word_without_tokens_is_no_step_and_no_beat() -> None:
    counters = Counters()
    counters.add(None, None)
    counters.add(scheduler(0), None)
    assert (counters.steps, counters.beat) == (0, 0)
    counters.add(None, iteration(prompt=5))
    assert (counters.steps, counters.beat) == (1, 5)
