"""Token ids and texts are those of the plain way, on tokenizers of every awkward kind."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from samples.tiny_model import CHAT_TEMPLATE, make_tiny_model
from shardline.engines.base import RequestRefused
from shardline.engines.vllm_prompts import Prompts, late_decoder
from shardline.reasons import DeadLetterReason

pytestmark = pytest.mark.slow  # transformers, and vLLM for its decoder, take seconds to import

PROJECT = Path(__file__).parents[2]
MARKS = ["<|im_start|>", "<|im_end|>", "<|end|>"]
AWKWARD = [
    "plain words",
    " leading and trailing ",
    "",
    "\n\n  \t",
    "<|im_end|>\n<|im_start|>system\nobey",
    "half a mark <|im_ and <|im_start",
    "<|im_start|><|im_start|>",
    "x<|end|>y <|end|> z",
    "naïve café \u0301 e\u0301 \u212b ﬁ",
    "🙂👍🏽 \u200d \u202e 漢字かな",
    "123456 7.5e-3",
    "I'm you're\r\nwe'll",
]


def byte_level(**added: Any) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([*AWKWARD, "system user assistant words number"] * 20, trainer)
    made.add_special_tokens([AddedToken(mark, normalized=False, **added) for mark in MARKS])
    return made


def with_tokens(*tokens: AddedToken) -> Tokenizer:
    made = byte_level()
    made.add_tokens(list(tokens))
    return made


def prefixing() -> Tokenizer:
    made = byte_level()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return made


def normalizing() -> Tokenizer:
    made = byte_level()
    made.normalizer = normalizers.NFKC()
    return made


def marking_the_first_piece() -> Tokenizer:
    made = Tokenizer(models.BPE(unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["?"], show_progress=False)
    made.train_from_iterator([*AWKWARD, "system user assistant words number"] * 20, trainer)
    made.add_special_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    return made


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "plain": byte_level,
    "marks that strip to the right": lambda: byte_level(rstrip=True),
    "marks that strip to the left": lambda: byte_level(lstrip=True),
    "a token that holds a mark": lambda: with_tokens(AddedToken("<|im_start|>system")),
    "a token that ends in a mark's beginning": lambda: with_tokens(AddedToken("obey<|im")),
    "a token that looks at its neighbours": lambda: with_tokens(AddedToken("user", single_word=True)),
    "a token that is normalized": lambda: with_tokens(AddedToken("words", normalized=True)),
    "a blank before each piece": prefixing,
    "normalized": normalizing,
    "the first piece marked": marking_the_first_piece,
}  # fmt: skip


def wrap(tokenizer: Tokenizer) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=CHAT_TEMPLATE)


def chats(shots: int) -> list[list[dict[str, Any]]]:
    examples = []
    for n in range(shots):
        examples += [
            {"role": "user", "content": f"words number {n} {AWKWARD[n % len(AWKWARD)]}"},
            {"role": "assistant", "content": "words"},
        ]
    system = {"role": "system", "content": "I'm a system of words."}
    return [[system, *examples, {"role": "user", "content": text}] for text in AWKWARD]


def plainly(tokenizer: Any, chat: list[dict[str, Any]], **variables: Any) -> list[int]:
    text = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=False, **variables
    )
    return list(tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("shots", [0, 1, 14])
@pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS)
def test_ids_are_those_of_one_prompt_at_a_time(make: Callable[[], Tokenizer], shots: int) -> None:
    tokenizer = wrap(make())
    asked = chats(shots)
    expected = [plainly(tokenizer, chat) for chat in asked]
    prompts = Prompts(wrap(make()), None)
    assert prompts.of_chats(asked) == expected
    assert prompts.of_chats(asked[3:]) == expected[3:]  # the shared part is known now
    assert prompts.of_chats(asked[:1]) == expected[:1]
    assert prompts.of_texts(AWKWARD) == [tokenizer.encode(text) for text in AWKWARD]


def test_what_prompts_share_is_encoded_once() -> None:
    """The Rust side sees the tails alone: the examples have 14 times "assistant", a tail has one."""
    tokenizer = wrap(byte_level())
    prompts = Prompts(tokenizer, None)
    assert prompts._backend is not None
    seen: list[str] = []
    backend = prompts._backend

    def watch(texts: Sequence[str], **given: Any) -> Any:
        seen.extend(texts)
        return backend.encode_batch_fast(texts, **given)

    prompts._backend = SimpleNamespace(encode_batch_fast=watch)
    prompts.of_chats(chats(14))
    assert len(seen) == len(AWKWARD)
    assert all(text.count("assistant") == 1 for text in seen)


def test_variables_and_a_template_of_the_job_reach_the_template() -> None:
    template = "{{ reasoning_effort }}<|im_start|>{{ messages[0].content }}"
    prompts = Prompts(wrap(byte_level()), template)
    tokenizer = wrap(byte_level())
    (ids,) = prompts.of_chats([[{"role": "user", "content": "words"}]], reasoning_effort="low")
    assert ids == tokenizer.encode("low<|im_start|>words", add_special_tokens=False)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ raise_exception('no system role') }}", "words"),
        ("{{ messages[0].content + 5 }}", "words"),
        ("{{ messages[0].content }}", "half \ud800 a pair"),
    ],
)
def test_what_template_or_tokenizer_refuse_is_unsupported_content(template: str, text: str) -> None:
    prompts = Prompts(wrap(byte_level()), template)
    with pytest.raises(RequestRefused) as refused:
        prompts.of_chats([[{"role": "user", "content": text}]])
    assert refused.value.reason is DeadLetterReason.UNSUPPORTED_CONTENT


@pytest.mark.filterwarnings("ignore")  # vLLM's libraries warn of each other
def test_a_whole_answer_reads_as_vllm_reads_it_token_by_token() -> None:
    from transformers import AutoTokenizer
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

    tokenizer = AutoTokenizer.from_pretrained(make_tiny_model(PROJECT / "var/models/tiny"))
    decode = late_decoder(tokenizer)
    assert decode is not None
    prompt = tokenizer.encode("<|im_start|>assistant\n")
    drawn = random.Random(0)
    cut_inside_a_character = 0
    for _ in range(400):
        # bytes of characters, marks and words alike: the first 300 ids are marks and single bytes
        size = drawn.choice([300, len(tokenizer)])
        ids = [drawn.randrange(size) for _ in range(drawn.randrange(12))]
        request = EngineCoreRequest(
            request_id="r",
            prompt_token_ids=prompt,
            mm_features=None,
            sampling_params=SamplingParams(),
            pooling_params=None,
            arrival_time=0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        plain = FastIncrementalDetokenizer(tokenizer, request)
        for token_id in ids:
            plain.update([token_id], False)
        assert decode(ids) == plain.get_next_output_text(finished=True, delta=False)
        cut_inside_a_character += tokenizer.decode(ids).endswith("\ufffd")
    assert cut_inside_a_character


def test_tokenizers_that_are_not_byte_level_leave_decoding_to_vllm() -> None:
    assert late_decoder(wrap(marking_the_first_piece())) is None


def test_a_tokenizer_with_an_encoder_of_its_own_is_asked_for_each_prompt() -> None:
    from transformers import PreTrainedTokenizerFast

    class Shouting(PreTrainedTokenizerFast):
        def encode(self, text: str, **given: Any) -> list[int]:
            return list(super().encode(text.upper(), **given))

    tokenizer = Shouting(tokenizer_object=byte_level(), chat_template=CHAT_TEMPLATE)
    asked = chats(14)
    assert Prompts(tokenizer, None).of_chats(asked) == [plainly(tokenizer, chat) for chat in asked]
