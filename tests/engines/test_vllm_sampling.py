"""Requests that share their parameters get what each would have got alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shardline.engines.base import RequestRefused
from shardline.engines.openai_body import parse_settings
from shardline.engines.vllm_sampling import Sampling, Samplings

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # vLLM takes 10 s to import

FIELDS = {"max_tokens": None, "temperature": 0.5, "seed": 3, "stop": ["a", "b"]}


def get(samplings: Samplings, **rest: Any) -> Sampling:
    found = samplings.get(rest, lambda: parse_settings({"messages": [], **rest}))
    assert isinstance(found, Sampling)
    return found


def as_vllm_takes_it(params: Any, room: int) -> Any:
    """What its input processor does to a request's own copy."""
    own = params.clone()
    own.watermarking = False
    if own.max_tokens is None:
        own.max_tokens = room
    own.update_from_generation_config({"eos_token_id": [2, 7, 9]}, 2)
    return own


def test_equal_parameters_are_made_once_and_others_are_not_confused() -> None:
    samplings = Samplings({}, decodes_late=True)
    one = get(samplings, **FIELDS)
    assert get(samplings, **FIELDS) is one
    assert get(samplings, **{**FIELDS, "seed": 4}).params.seed == 4
    assert get(samplings, seed=1, temperature=1).params.seed == 1


def test_a_shared_object_gives_each_request_what_its_own_would() -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    shared = get(Samplings({"top_k": 7}, decodes_late=True), **FIELDS).params
    for room in (100, 5, 60):
        fresh = SamplingParams(
            **FIELDS, top_k=7, output_kind=RequestOutputKind.FINAL_ONLY, skip_clone=True
        )
        mine, plain = as_vllm_takes_it(shared, room), as_vllm_takes_it(fresh, room)
        names = [name for name in SamplingParams.__struct_fields__ if name != "detokenize"]
        assert {n: getattr(mine, n) for n in names} == {n: getattr(plain, n) for n in names}
        assert mine.all_stop_token_ids == {2, 7, 9}
    assert shared.max_tokens is None


def test_the_engine_gets_the_bytes_of_plain_parameters() -> None:
    import msgspec
    from vllm import SamplingParams

    shared = get(Samplings({}, decodes_late=True), **FIELDS).params
    shared.__dict__["is_checked"] = True
    fields = {name: getattr(shared, name) for name in SamplingParams.__struct_fields__}
    plain = SamplingParams(**{n: v for n, v in fields.items() if not n.startswith("_")})
    assert msgspec.msgpack.encode(shared) == msgspec.msgpack.encode(plain)


def test_only_stop_strings_need_the_text_while_it_is_written() -> None:
    late = Samplings({}, decodes_late=True)
    assert get(late, stop="x").params.detokenize
    assert not get(late, max_tokens=3).params.detokenize
    assert get(Samplings({}, decodes_late=False), max_tokens=3).params.detokenize


def test_parameters_are_checked_against_the_model_once_they_pass() -> None:
    from vllm.exceptions import VLLMValidationError

    def model(vocabulary: int) -> Any:
        return SimpleNamespace(
            max_logprobs=5, is_diffusion=False, get_vocab_size=lambda: vocabulary
        )

    params = get(Samplings({}, decodes_late=True), logit_bias={"50": 1}).params
    for _ in range(2):  # a check that fails is made again
        with pytest.raises(VLLMValidationError):
            params.verify(model(vocabulary=10), None, None, None)
    params.verify(model(vocabulary=100), None, None, None)
    params.verify(model(vocabulary=10), None, None, None)


def test_what_is_refused_once_is_refused_again_with_its_reason() -> None:
    samplings = Samplings({}, decodes_late=True)
    for _ in range(2):
        wrong = samplings.get({"n": 2}, lambda: parse_settings({"messages": [], "n": 2}))
        assert isinstance(wrong, RequestRefused)
        assert wrong.reason == "bad_parameter"


def test_what_no_key_can_be_made_of_is_still_checked() -> None:
    samplings = Samplings({}, decodes_late=True)
    wrong = samplings.get({"seed": 2**70}, lambda: parse_settings({"messages": [], "seed": 2**70}))
    assert isinstance(wrong, RequestRefused)
