"""What vLLM says of itself, counted per attempt instead of per process.

vLLM keeps its counters in a registry of the process and throws them away when another engine is
made in it. Ours are given to each engine that replaces another, so that an attempt's figures go on
where the dead engine left them. They also stand in for vLLM's Prometheus histograms, which nobody
reads here and which cost a tenth of the front end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardline.rows import EngineMetrics


@dataclass
class Counters:
    """Sums over all engines of one attempt."""

    steps: int = 0
    """Steps that made at least one token."""
    running: int = 0
    """Requests in a step, summed over steps."""
    prompt_tokens: int = 0
    """Tokens of prompts that were started; those of a preempted request once."""
    cached_tokens: int = 0
    """Of them, taken from the prefix cache."""
    generated_tokens: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    """Tokens that were looked up in the prefix cache, and those found."""
    prefix_hits: int = 0
    kv_cache_usage: float | None = None
    """Share of the cache in use, of the latest step that ran anything."""

    @property
    def beat(self) -> int:
        """Changes whenever an engine gets anywhere."""
        return self.prompt_tokens + self.generated_tokens

    def add(self, scheduler: Any, iteration: Any) -> None:
        """Take in what one step of an engine says (vLLM's SchedulerStats and IterationStats)."""
        if scheduler is not None:
            cache = scheduler.prefix_cache_stats
            self.prefix_queries += cache.queries
            self.prefix_hits += cache.hits
            if scheduler.num_running_reqs:
                self.kv_cache_usage = scheduler.kv_cache_usage
        if iteration is not None:
            self.steps += 1
            self.running += scheduler.num_running_reqs if scheduler is not None else 0
            self.prompt_tokens += iteration.prompt_token_stats.total
            self.cached_tokens += iteration.prompt_token_stats.cached_tokens
            self.generated_tokens += iteration.num_generation_tokens
            self.preemptions += iteration.num_preempted_reqs

    def metrics(self, max_num_seqs: int) -> EngineMetrics:
        """What an attempt's record holds of it."""
        return EngineMetrics(
            max_num_seqs=max_num_seqs,
            kv_cache_usage=self.kv_cache_usage,
            preemptions=self.preemptions,
            prefix_cache_queries=self.prefix_queries,
            prefix_cache_hits=self.prefix_hits,
            prompt_tokens_computed=self.prompt_tokens - self.cached_tokens,
            prompt_tokens_cached=self.cached_tokens,
            engine_steps=self.steps,
        )


def stat_logger(counters: Counters) -> Any:
    """What AsyncLLM takes as one of its `stat_loggers`; it then makes no Prometheus metrics."""
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    class CountingStatLogger(PrometheusStatLogger):  # type: ignore[misc]
        """vLLM adds its own logger unless one of the given is of that class."""

        def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
            self.vllm_config, self.engine_indexes = vllm_config, engine_indexes or [0]

        def record(
            self,
            scheduler_stats: Any,
            iteration_stats: Any,
            mm_cache_stats: Any = None,
            engine_idx: int = 0,
        ) -> None:
            counters.add(scheduler_stats, iteration_stats)

        def log_engine_initialized(self) -> None: ...

        def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None: ...

        def record_admission_rejection(self, reason: str) -> None: ...

    return CountingStatLogger
