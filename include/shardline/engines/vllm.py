"""The vLLM engine: AsyncLLM in this process, the engine itself in its children.

CPU is a configuration, not a fork: `vllm_config` is the whole difference. What this process does
for a request is kept small, since a fast engine waits for it: prompts become token ids many at once
(`vllm_prompts`), parameters are made once (`vllm_sampling`), only the end of a request is heard of,
and its text is decoded there in one piece. Embeddings are in `vllm_pooling`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from shardline.engines.base import (
    Answer,
    EngineDied,
    EngineWontStart,
    RequestRefused,
    or_refused,
)
from shardline.engines.openai_body import check_messages, parse_completion, parse_settings
from shardline.engines.vllm_config import default_args, default_env, is_cpu
from shardline.engines.vllm_limits import Gpu, find_gpu
from shardline.engines.vllm_prompts import Prompts, late_decoder
from shardline.engines.vllm_sampling import Sampling, Samplings
from shardline.engines.vllm_stats import Counters, stat_logger
from shardline.errors import WrongInput
from shardline.job_blocks import EngineBlock
from shardline.kinds import FORMS, Kind
from shardline.reasons import DeadLetterReason
from shardline.rows import EngineMetrics, Request
from shardline.weights.cache import local_model_folder

_STOP_S = 2.0
_ABORTED_AT_MOST = 3

# The kernel kills an engine when the thread that made it ends: this one lives as long as we do.
_MAKER = ThreadPoolExecutor(1, "engine")


class _Prepared(NamedTuple):
    token_ids: list[int]
    sampling: Sampling


class VllmEngine:
    """See the module. `name` is what the model is served as: the job's name.

    `counters` go on from the engine that this one replaces.
    """

    def __init__(
        self,
        block: EngineBlock,
        commit: str,
        name: str,
        kind: Kind = "chat",
        counters: Counters | None = None,
    ) -> None:
        self._is_cpu, self._kind = is_cpu(), kind
        self._block, self._commit, self._name = block, commit, name
        self._fit_to(None)
        self._chat_template = block.chat_template
        self._counters = counters or Counters()
        self._numbers = itertools.count()
        self._llm: Any = None

    def _fit_to(self, gpu: Gpu | None) -> None:
        block, kind = self._block, self._kind
        defaults = default_args(block, self._name, is_cpu=self._is_cpu, kind=kind, gpu=gpu)
        self._args = defaults | block.engine_args
        self.max_num_seqs = int(self._args["max_num_seqs"])

    async def fetch(self) -> None:
        loop = asyncio.get_running_loop()
        folder = await loop.run_in_executor(_MAKER, local_model_folder, self._block, self._commit)
        self._args["model"] = str(folder)

    async def start(self) -> None:
        for key, value in default_env(is_cpu=self._is_cpu).items():
            os.environ.setdefault(key, value)
        loop = asyncio.get_running_loop()
        if not self._is_cpu:
            self._fit_to(await loop.run_in_executor(_MAKER, find_gpu))
        await (
            self.fetch()
        )  # nothing comes twice; its place in the arguments was lost with the old ones
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # all of it is here
        self._llm = await loop.run_in_executor(_MAKER, self._make)
        config = self._llm.model_config
        self._max_model_len = int(config.max_model_len)
        self._tokenizer = self._llm.get_tokenizer()
        has_template = self._chat_template or getattr(self._tokenizer, "chat_template", None)
        if self._kind == "chat" and not has_template:
            raise WrongInput(
                f"model {self._args['model']}: its tokenizer has no chat template; "
                "give one as chat_template beside the model"
            )
        self._prompts = Prompts(self._tokenizer, self._chat_template)
        self._decode = late_decoder(self._tokenizer)
        self._samplings = Samplings(
            dict(config.get_diff_sampling_param()), decodes_late=self._decode is not None
        )

    def _make(self) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.envs import enable_envs_cache
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
            llm = AsyncLLM(
                vllm_config=config,
                executor_class=Executor.get_class(config),
                log_stats=not self._args["disable_log_stats"],
                log_requests=False,
                stat_loggers=[stat_logger(self._counters)],
            )
        except Exception as error:
            # vLLM raises anything here, and its children have said why on standard error
            raise EngineWontStart(f"vllm: {type(error).__name__}: {_one_line(error)}") from error
        enable_envs_cache()  # else it asks the environment for each token
        return llm

    def prepare(self, requests: Sequence[Request]) -> list[Any]:
        try:
            return self._prepare_all(requests)
        except Exception:  # noqa: BLE001 - one of them; which one is found below
            return [or_refused(self._prepare, request) for request in requests]

    def _prepare(self, request: Request) -> Any:
        (prepared,) = self._prepare_all([request])
        if isinstance(prepared, RequestRefused):
            raise prepared
        return prepared

    def _prepare_all(self, requests: Sequence[Request]) -> list[_Prepared | RequestRefused]:
        """Raises what one of them does to the template or the tokenizer."""
        ends: list[Any] = [self._check(request) for request in requests]
        # chats for one rendering of the template, by what its variables are
        groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for index, end in enumerate(ends):
            if not isinstance(end, RequestRefused):
                is_text = isinstance(end[0], str)
                groups[(is_text, *end[1].template_variables.items())].append(index)
        for (is_text, *variables), indices in groups.items():
            prompts = [ends[index][0] for index in indices]
            if is_text:
                encoded = self._prompts.of_texts(prompts)
            else:
                encoded = self._prompts.of_chats(prompts, **dict(variables))
            for index, token_ids in zip(indices, encoded, strict=True):
                ends[index] = self._fitting(token_ids, ends[index][1])
        return ends

    def _check(self, request: Request) -> tuple[Any, Sampling] | RequestRefused:
        """A chat's messages or a completion's text, and its sampling."""
        is_completion = request.url == FORMS["completion"].url
        asks = FORMS["completion" if is_completion else "chat"].asks
        rest = {key: value for key, value in request.body.items() if key != asks}
        try:
            if is_completion:
                sampling = self._samplings.get(rest, lambda: parse_completion({**rest, asks: ""}))
                prompt: Any = request.body.get(asks)
                if not isinstance(prompt, str):
                    wrong = f"{asks}: expected a string"
                    return RequestRefused(DeadLetterReason.BAD_PARAMETER, wrong)
            else:
                sampling = self._samplings.get(rest, lambda: parse_settings({**rest, asks: []}))
                prompt = check_messages(request.body.get(asks))
        except RequestRefused as refused:
            return refused
        return sampling if isinstance(sampling, RequestRefused) else (prompt, sampling)

    def _fitting(self, token_ids: list[int], sampling: Sampling) -> _Prepared | RequestRefused:
        if not token_ids:
            return RequestRefused(DeadLetterReason.EMPTY_PROMPT, "no token in the prompt")
        if len(token_ids) >= self._max_model_len:
            wrong = f"{len(token_ids)} tokens, and the model takes {self._max_model_len - 1}"
            return RequestRefused(DeadLetterReason.TOO_LONG, wrong)
        return _Prepared(token_ids, sampling)

    async def generate(self, custom_id: str, prepared: Any) -> Answer:
        has_form = prepared.sampling.has_form
        for _ in range(_ABORTED_AT_MOST):
            output = await self._run(f"{custom_id}-{next(self._numbers)}", prepared)
            end = output.outputs[0]
            if end.finish_reason in ("stop", "length"):
                text = self._text(end, prepared.sampling)
                tokens = len(end.token_ids)
                return Answer(text, end.finish_reason, len(prepared.token_ids), tokens)
            if end.finish_reason != "abort":
                break
        # a schema that cannot be followed (a recursive $ref) ends like this, after one token
        reason = DeadLetterReason.BAD_SCHEMA if has_form else DeadLetterReason.ENGINE_ERROR
        raise RequestRefused(reason, f"the engine ended it with {end.finish_reason}")

    def _text(self, end: Any, sampling: Sampling) -> str:
        if self._decode is None or sampling.params.detokenize:
            return str(end.text)
        # the token that stopped it is counted, and no part of the text
        return self._decode(end.token_ids[:-1] if end.finish_reason == "stop" else end.token_ids)

    async def _run(self, request_id: str, prepared: _Prepared) -> Any:
        from vllm.inputs import tokens_input

        token_ids, sampling = prepared
        # length and parameters were checked before: what is left is the form of the answer
        has_form = sampling.has_form
        reason = DeadLetterReason.BAD_SCHEMA if has_form else DeadLetterReason.BAD_PARAMETER
        prompt = tokens_input(token_ids)
        return await self._last(
            lambda llm: llm.generate(prompt, sampling.params, request_id), reason
        )

    async def _last(
        self, ask: Callable[[Any], AsyncIterator[Any]], refused: DeadLetterReason
    ) -> Any:
        """The last output of a request, and its errors as ours; `refused` is what vLLM's no means."""
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        output = None
        try:
            async for final in ask(self._llm):
                output = final
        except EngineDeadError as error:
            raise EngineDied("vllm: the engine is dead") from error
        except VLLMClientError as error:
            raise RequestRefused(refused, str(error)) from error
        except EngineGenerateError as error:
            if self._llm.errored:
                raise EngineDied("vllm: the engine is dead") from error
            wrong = f"{type(error.__cause__ or error).__name__}: {error.__cause__ or error}"
            raise RequestRefused(DeadLetterReason.ENGINE_ERROR, wrong) from error
        return output

    def beat(self) -> int:
        return self._counters.beat

    def metrics(self) -> EngineMetrics:
        return self._counters.metrics(self.max_num_seqs)

    async def stop(self) -> None:
        if self._llm is None:
            return
        llm, self._llm = self._llm, None
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(_MAKER, lambda: llm.shutdown(timeout=_STOP_S))
        llm.shutdown = lambda timeout=None: None  # __del__ would call it again and fail


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
