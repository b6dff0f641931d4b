"""The vLLM engine: AsyncLLM in this process, the engine itself in its children.

CPU is a configuration, not a fork: `vllm_config` is the whole difference. The chat template is
rendered and tokenized here, and a completion's prompt is tokenized as it is, so that vLLM gets
token ids. Embeddings are in `vllm_pooling`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from shardline.engines.base import (
    Answer,
    EngineDied,
    EngineWontStart,
    RequestRefused,
    choices_of,
    or_refused,
    schema_of,
)
from shardline.engines.openai_body import Completion, Parameters, parse_body, parse_completion
from shardline.engines.vllm_config import default_args, default_env, is_cpu
from shardline.errors import WrongInput
from shardline.job import EngineBlock
from shardline.kinds import FORMS, Kind
from shardline.reasons import DeadLetterReason
from shardline.rows import EngineMetrics, Request

_STOP_S = 2.0
_ABORTED_AT_MOST = 3

# The kernel kills an engine when the thread that made it ends: this one lives as long as we do.
_MAKER = ThreadPoolExecutor(1, "engine")


@dataclass(frozen=True)
class _Prepared:
    token_ids: list[int]
    sampling: Any
    has_form: bool


class VllmEngine:
    """See the module. `name` is what the model is served as: the job's name."""

    def __init__(self, block: EngineBlock, commit: str, name: str, kind: Kind = "chat") -> None:
        self._is_cpu, self._kind = is_cpu(), kind
        defaults = default_args(block, commit, name, is_cpu=self._is_cpu, kind=kind)
        self._args = defaults | block.engine_args
        self._chat_template = block.chat_template
        self.max_num_seqs = int(self._args["max_num_seqs"])
        self._numbers = itertools.count()
        self._llm: Any = None
        self._sampling_defaults: dict[str, Any] = {}
        self._last_metrics = EngineMetrics(max_num_seqs=self.max_num_seqs)

    async def start(self) -> None:
        is_folder = os.path.isabs(self._args["model"])  # noqa: PTH117
        for key, value in default_env(is_cpu=self._is_cpu, is_folder=is_folder).items():
            os.environ.setdefault(key, value)
        loop = asyncio.get_running_loop()
        self._llm = await loop.run_in_executor(_MAKER, self._make)
        config = self._llm.model_config
        self._max_model_len = int(config.max_model_len)
        self._sampling_defaults = dict(config.get_diff_sampling_param())
        self._tokenizer = self._llm.get_tokenizer()
        has_template = self._chat_template or getattr(self._tokenizer, "chat_template", None)
        if self._kind == "chat" and not has_template:
            raise WrongInput(
                f"model {self._args['model']}: its tokenizer has no chat template; "
                "give one as chat_template beside the model"
            )

    def _make(self) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.executor.abstract import Executor

        try:
            config = AsyncEngineArgs(**self._args).create_engine_config(UsageContext.ENGINE_CONTEXT)
        except (TypeError, ValueError) as error:
            raise WrongInput(f"engine_args: {_one_line(error)}") from error
        except (RuntimeError, OSError) as error:
            raise EngineWontStart(f"vllm: {_one_line(error)}") from error
        try:
            return AsyncLLM(
                vllm_config=config, executor_class=Executor.get_class(config), log_stats=True
            )
        except Exception as error:
            # vLLM raises anything here, and its children have said why on standard error
            raise EngineWontStart(f"vllm: {type(error).__name__}: {_one_line(error)}") from error

    def prepare(self, requests: Sequence[Request]) -> list[_Prepared | RequestRefused]:
        return [or_refused(self._prepare, request) for request in requests]

    def _prepare(self, request: Request) -> _Prepared:
        body = request.body
        parameters: Parameters | Completion
        if request.url == FORMS["completion"].url:
            parameters = parse_completion(body)
            token_ids = list(self._tokenizer.encode(parameters.prompt))
        else:
            parameters = parse_body(body)
            token_ids = self._tokenize(parameters)
        if not token_ids:
            raise RequestRefused(DeadLetterReason.EMPTY_PROMPT, "no token in the prompt")
        if len(token_ids) >= self._max_model_len:
            wrong = f"{len(token_ids)} tokens, and the model takes {self._max_model_len - 1}"
            raise RequestRefused(DeadLetterReason.TOO_LONG, wrong)
        return _Prepared(token_ids, self._sampling(parameters, body), schema_of(body) is not None)

    def _tokenize(self, parameters: Parameters) -> list[int]:
        from jinja2 import TemplateError

        extra = {"reasoning_effort": parameters.reasoning_effort}
        try:
            text = self._tokenizer.apply_chat_template(
                parameters.messages,
                chat_template=self._chat_template,
                add_generation_prompt=True,
                tokenize=False,
                **{key: value for key, value in extra.items() if value is not None},
            )
        except TemplateError as error:  # e.g. "System role not supported"
            raise RequestRefused(DeadLetterReason.UNSUPPORTED_CONTENT, str(error)) from error
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _sampling(self, parameters: Parameters | Completion, body: dict[str, Any]) -> Any:
        from vllm import SamplingParams
        from vllm.exceptions import VLLMValidationError
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        given = {
            "max_tokens": parameters.limit,
            "temperature": parameters.temperature,
            "top_p": parameters.top_p,
            "presence_penalty": parameters.presence_penalty,
            "frequency_penalty": parameters.frequency_penalty,
            "stop": parameters.stop,
            "seed": parameters.seed,
        }
        values = {"max_tokens": None, **self._sampling_defaults}
        values |= {key: value for key, value in given.items() if value is not None}
        try:
            if parameters.logit_bias:
                values["logit_bias"] = {int(k): v for k, v in parameters.logit_bias.items()}
            if choices := choices_of(body):
                values["structured_outputs"] = StructuredOutputsParams(choice=choices)
            elif schema := schema_of(body):
                values["structured_outputs"] = StructuredOutputsParams(json=schema)
            elif (body.get("response_format") or {}).get("type") == "json_object":
                values["structured_outputs"] = StructuredOutputsParams(json_object=True)
            return SamplingParams(**values, output_kind=RequestOutputKind.FINAL_ONLY)
        except (VLLMValidationError, ValueError, TypeError) as error:
            raise RequestRefused(DeadLetterReason.BAD_PARAMETER, str(error)) from error

    async def generate(self, custom_id: str, prepared: _Prepared) -> Answer:
        for _ in range(_ABORTED_AT_MOST):
            output = await self._run(f"{custom_id}-{next(self._numbers)}", prepared)
            completion = output.outputs[0]
            if completion.finish_reason in ("stop", "length"):
                return Answer(
                    completion.text,
                    completion.finish_reason,
                    len(prepared.token_ids),
                    len(completion.token_ids),
                )
            if completion.finish_reason != "abort":
                break
        # a schema that cannot be followed (a recursive $ref) ends like this, after one token
        reason = DeadLetterReason.BAD_SCHEMA if prepared.has_form else DeadLetterReason.ENGINE_ERROR
        raise RequestRefused(reason, f"the engine ended it with {completion.finish_reason}")

    async def _run(self, request_id: str, prepared: _Prepared) -> Any:
        from vllm.exceptions import VLLMClientError
        from vllm.inputs import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        output = None
        try:
            prompt = tokens_input(prepared.token_ids)
            async for final in self._llm.generate(prompt, prepared.sampling, request_id):
                output = final
        except EngineDeadError as error:
            raise EngineDied("vllm: the engine is dead") from error
        except VLLMClientError as error:
            # length and parameters were checked before: what is left is the form of the answer
            reason = (
                DeadLetterReason.BAD_SCHEMA if prepared.has_form else DeadLetterReason.BAD_PARAMETER
            )
            raise RequestRefused(reason, str(error)) from error
        except EngineGenerateError as error:
            if self._llm.errored:
                raise EngineDied("vllm: the engine is dead") from error
            wrong = f"{type(error.__cause__ or error).__name__}: {error.__cause__ or error}"
            raise RequestRefused(DeadLetterReason.ENGINE_ERROR, wrong) from error
        return output

    def beat(self) -> int:
        found = _snapshot()
        return int(found.get("vllm:generation_tokens", 0) + found.get("vllm:prompt_tokens", 0))

    def metrics(self) -> EngineMetrics:
        if self._llm is None:
            return self._last_metrics
        found = _snapshot()
        self._last_metrics = EngineMetrics(
            max_num_seqs=self.max_num_seqs,
            kv_cache_usage=found.get("vllm:kv_cache_usage_perc"),
            preemptions=_whole(found.get("vllm:num_preemptions")),
            prefix_cache_queries=_whole(found.get("vllm:prefix_cache_queries")),
            prefix_cache_hits=_whole(found.get("vllm:prefix_cache_hits")),
            engine_steps=_whole(found.get("vllm:iteration_tokens_total")),
        )
        return self._last_metrics

    async def stop(self) -> None:
        if self._llm is None:
            return
        self.metrics()
        llm, self._llm = self._llm, None
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(_MAKER, lambda: llm.shutdown(timeout=_STOP_S))
        llm.shutdown = lambda timeout=None: None  # __del__ would call it again and fail


def _snapshot() -> dict[str, float]:
    """vLLM's own counters, summed over engines."""
    from vllm.v1.metrics.reader import get_metrics_snapshot

    found: dict[str, float] = {}
    for metric in get_metrics_snapshot():
        value = getattr(metric, "value", getattr(metric, "count", None))
        if value is not None:
            found[metric.name] = found.get(metric.name, 0) + value
    return found


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
