"""The vLLM engine for embeddings: the same AsyncLLM, with a model that makes one vector of a text.

Texts are tokenized as the model's tokenizer does it, with its own marks around them. What is longer
than the model takes is refused and never cut: a vector of half a document looks like a whole one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardline.engines.base import Answer, RequestRefused, or_refused
from shardline.engines.openai_body import Embedding, parse_embedding
from shardline.engines.vllm import VllmEngine
from shardline.engines.vllm_stats import Counters
from shardline.job_blocks import EngineBlock
from shardline.kinds import FORMS
from shardline.reasons import DeadLetterReason
from shardline.rows import Request

_ABORTED_AT_MOST = 3


@dataclass(frozen=True)
class _Prepared:
    token_ids: list[int]
    dimensions: int | None


def _asked(request: Request) -> Embedding:
    if request.url != FORMS["embedding"].url:
        wrong = f"{request.url}: an embedding model answers {FORMS['embedding'].url} only"
        raise RequestRefused(DeadLetterReason.BAD_PARAMETER, wrong)
    return parse_embedding(request.body)


class VllmPoolingEngine(VllmEngine):
    """See the module."""

    def __init__(
        self, block: EngineBlock, commit: str, name: str, counters: Counters | None = None
    ) -> None:
        super().__init__(block, commit, name, "embedding", counters)
        self._has_own_batch = "max_num_batched_tokens" in block.engine_args

    def _make(self) -> Any:
        if not self._has_own_batch:
            self._fit_batch()
        return super()._make()

    def _fit_batch(self) -> None:
        """Make a step hold the longest text, for a model that must see all of it at once."""
        from vllm.engine.arg_utils import AsyncEngineArgs

        try:
            config = AsyncEngineArgs(**self._args).create_model_config()
        except (TypeError, ValueError, RuntimeError, OSError):
            return  # making the engine says what is wrong, in one place
        if not config.is_chunked_prefill_supported:
            tokens = max(self._args["max_num_batched_tokens"], int(config.max_model_len))
            self._args["max_num_batched_tokens"] = tokens

    def _prepare_all(self, requests: Sequence[Request]) -> list[Any]:
        asked = [or_refused(_asked, request) for request in requests]
        texts = [a.input for a in asked if isinstance(a, Embedding)]
        token_ids = iter(self._prompts.of_texts(texts))
        return [
            self._fit(next(token_ids), a.dimensions) if isinstance(a, Embedding) else a
            for a in asked
        ]

    def _fit(self, token_ids: list[int], dimensions: int | None) -> _Prepared | RequestRefused:
        if not token_ids:
            return RequestRefused(DeadLetterReason.EMPTY_PROMPT, "no token in the input")
        # nothing is written, so all of the model's length is for the text
        if len(token_ids) > self._max_model_len:
            wrong = f"{len(token_ids)} tokens, and the model takes {self._max_model_len}"
            return RequestRefused(DeadLetterReason.TOO_LONG, wrong)
        return _Prepared(token_ids, dimensions)

    async def generate(self, custom_id: str, prepared: Any) -> Answer:
        for _ in range(_ABORTED_AT_MOST):
            vector = await self._encode(f"{custom_id}-{next(self._numbers)}", prepared)
            if vector is not None:
                return Answer("", "stop", len(prepared.token_ids), 0, vector)
        raise RequestRefused(DeadLetterReason.ENGINE_ERROR, "the engine ended it without a vector")

    async def _encode(self, request_id: str, prepared: _Prepared) -> bytes | None:
        """The vector's bytes; None when the engine dropped the request."""
        from vllm import PoolingParams
        from vllm.inputs import tokens_input

        params = PoolingParams(task="embed", dimensions=prepared.dimensions)
        prompt = tokens_input(prepared.token_ids)
        # dimensions that the model does not have
        refused = DeadLetterReason.BAD_PARAMETER
        output = await self._last(lambda llm: llm.encode(prompt, params, request_id), refused)
        if output is None or not output.outputs.data.numel():
            return None
        return bytes(output.outputs.data.float().cpu().numpy().astype("<f4").tobytes())
