"""What a request asks of the sampler, made once for all requests that ask the same.

Most rows of a shard share everything but their prompt. vLLM would copy its parameters deeply for
each request and check a schema again for each; both are spared here. The parameters are shared by
requests that run at the same time: all that vLLM writes into its shallow copy is new values, and
into what the copies share, the same values again (tests compare).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson

from shardline.engines.base import RequestRefused, choices_of, schema_of
from shardline.engines.openai_body import Completion, Parameters
from shardline.reasons import DeadLetterReason

_KEPT = 256  # different sets of parameters: requests with a seed each have their own


@dataclass(frozen=True)
class Sampling:
    """What all requests with one set of parameters share."""

    params: Any
    """vLLM's SamplingParams."""
    has_form: bool
    """A schema, choices, or any JSON object: the engine compiles it."""
    template_variables: dict[str, Any]
    """Of the chat template."""


class Samplings:
    """Samplings by what stands in a body beside its prompt.

    `defaults` are the model's own, from its generation_config.json. With `decodes_late` the caller
    turns tokens into text itself, at the end, wherever no stop string must be looked for.
    """

    def __init__(self, defaults: dict[str, Any], *, decodes_late: bool) -> None:
        self._defaults, self._decodes_late = defaults, decodes_late
        self._kept: OrderedDict[bytes, Sampling | RequestRefused] = OrderedDict()

    def get(
        self, rest: dict[str, Any], parse: Callable[[], Parameters | Completion]
    ) -> Sampling | RequestRefused:
        """The sampling of a body without its prompt, `rest`; `parse` checks it, when it is new."""
        try:
            key = orjson.dumps(rest)
        except orjson.JSONEncodeError:  # too deep, or beyond 64 bits: `parse` refuses it
            return self._make(rest, parse)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = self._make(rest, parse)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found

    def _make(
        self, rest: dict[str, Any], parse: Callable[[], Parameters | Completion]
    ) -> Sampling | RequestRefused:
        try:
            parameters = parse()
            effort = getattr(parameters, "reasoning_effort", None)
            return Sampling(
                self._params(parameters, rest),
                has_form=_form(rest) is not None,
                template_variables={} if effort is None else {"reasoning_effort": effort},
            )
        except RequestRefused as refused:
            return refused

    def _params(self, parameters: Parameters | Completion, rest: dict[str, Any]) -> Any:
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
        values = {"max_tokens": None, **self._defaults}
        values |= {key: value for key, value in given.items() if value is not None}
        try:
            if parameters.logit_bias:
                values["logit_bias"] = {int(k): v for k, v in parameters.logit_bias.items()}
            if form := _form(rest):
                values["structured_outputs"] = StructuredOutputsParams(**form)
            return _params_class()(
                **values,
                output_kind=RequestOutputKind.FINAL_ONLY,
                detokenize=bool(parameters.stop) or not self._decodes_late,
                skip_clone=True,
            )
        except (VLLMValidationError, ValueError, TypeError) as error:
            raise RequestRefused(DeadLetterReason.BAD_PARAMETER, str(error)) from error


def _form(rest: dict[str, Any]) -> dict[str, Any] | None:
    """How the answer must look, in vLLM's words."""
    if choices := choices_of(rest):
        return {"choice": choices}
    if schema := schema_of(rest):
        return {"json": schema}
    if (rest.get("response_format") or {}).get("type") == "json_object":
        return {"json_object": True}
    return None


@cache
def _params_class() -> Any:
    from vllm import SamplingParams

    class CheckedOnce(SamplingParams):  # type: ignore[misc]
        """Checked against the model at the first request only: a schema takes 0.3 ms each time."""

        def verify(self, *args: Any, **kwargs: Any) -> None:
            if not self.__dict__.get("is_checked"):
                super().verify(*args, **kwargs)
                self.__dict__["is_checked"] = True

    return CheckedOnce
