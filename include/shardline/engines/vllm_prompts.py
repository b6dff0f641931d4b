"""How prompts become token ids: many at once, and what all of them share only once.

The ids are exactly those of the tokenizer's own `apply_chat_template` and `encode`, one prompt at a
time. A batch of the fast tokenizers runs outside Python's lock and spares a third of the work. Where
a stretch of prompts begins alike (a system prompt, examples), the shared part is encoded once, up
to its last special token: such a token parts the text before anything else looks at it, so that
what stands left of it has no say in what stands right of it. `_can_part` knows the tokenizers for
which that holds, and the first prompt of each stretch is encoded in the plain way too and compared.
"""

from __future__ import annotations

import logging
import os.path
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from shardline.engines.base import RequestRefused
from shardline.reasons import DeadLetterReason

log = logging.getLogger(__name__)
Chat = list[dict[str, Any]]

_WORTH_SHARING = 200  # characters
# Each of these looks at one piece of text between special tokens, whichever piece it is. Metaspace
# does not: it may mark the first one alone.
_LOCAL = {"ByteLevel", "Digits", "Punctuation", "Split", "Whitespace", "WhitespaceSplit"}


class Prompts:
    """Prompts of one model. Not for two threads at once.

    What one prompt does wrong is raised for all of them: the caller then asks for each alone.
    """

    def __init__(self, tokenizer: Any, chat_template: str | None) -> None:
        self._tokenizer, self._template = tokenizer, chat_template
        self._backend = fast_backend(tokenizer)
        self._separator = _separator(self._backend) if self._backend else None
        self._head: tuple[str, list[int]] = ("", [])

    def of_chats(self, chats: Sequence[Chat], **variables: Any) -> list[list[int]]:
        """Token ids of chats; `variables` are the template's.

        Raises:
            RequestRefused: unsupported_content.
        """
        return self._guarded(self._encode_parted, self._render(chats, variables))

    def of_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of plain texts, with the tokenizer's own marks around them.

        Raises:
            RequestRefused: unsupported_content.
        """
        return self._guarded(partial(self._encode, add_special_tokens=True), texts)

    def _render(self, chats: Sequence[Chat], variables: dict[str, Any]) -> list[str]:
        from jinja2 import TemplateError

        try:
            rendered = self._tokenizer.apply_chat_template(
                list(chats),
                chat_template=self._template,
                add_generation_prompt=True,
                tokenize=False,
                **variables,
            )
        except (TemplateError, TypeError) as error:  # e.g. "System role not supported"
            wrong = f"the chat template: {error}"
            raise RequestRefused(DeadLetterReason.UNSUPPORTED_CONTENT, wrong) from error
        return list(rendered)

    def _guarded(
        self, encode: Callable[[Sequence[str]], list[list[int]]], texts: Sequence[str]
    ) -> list[list[int]]:
        try:
            return encode(texts)
        except (TypeError, UnicodeError) as error:  # half of a surrogate pair is no text
            wrong = f"the tokenizer: {error}"
            raise RequestRefused(DeadLetterReason.UNSUPPORTED_CONTENT, wrong) from error

    def _encode_plain(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def _encode(self, texts: Sequence[str], *, add_special_tokens: bool = False) -> list[list[int]]:
        if self._backend is None:
            return [self._encode_plain(t, add_special_tokens=add_special_tokens) for t in texts]
        batch = self._backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in batch]

    def _encode_parted(self, texts: Sequence[str]) -> list[list[int]]:
        head = self._shared_head(texts)
        if not head:
            return self._encode(texts)
        if head != self._head[0]:
            self._head = (head, self._encode_plain(head))
        ids = [self._head[1] + tail for tail in self._encode([t[len(head) :] for t in texts])]
        if ids[0] == self._encode_plain(texts[0]):
            return ids
        log.error("this tokenizer cannot encode prompts in parts: each is encoded as a whole")
        self._separator = None
        return self._encode(texts)

    def _shared_head(self, texts: Sequence[str]) -> str:
        """What all texts begin with, up to the end of a special token."""
        if self._separator is None or len(texts) < 2:
            return ""
        shared = os.path.commonprefix([min(texts), max(texts)])  # noqa: RUF071 - no paths
        if len(shared) < _WORTH_SHARING:
            return ""
        ends = [found.end() for found in self._separator.finditer(shared)]
        return shared[: ends[-1]] if ends else ""


def fast_backend(tokenizer: Any) -> Any | None:
    """The Rust tokenizer below a tokenizer that adds nothing of its own to it, else None."""
    from transformers import TokenizersBackend

    # vLLM puts classes of its own on top, which lend out copies to threads
    kind = next(c for c in type(tokenizer).__mro__ if not c.__module__.startswith("vllm."))
    changed = ("encode", "_encode_plus", "__call__")
    if not isinstance(tokenizer, TokenizersBackend) or any(
        getattr(kind, name) is not getattr(TokenizersBackend, name) for name in changed
    ):
        return None
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()  # as `encode` does it, once for all
    backend.no_padding()
    return backend


def late_decoder(tokenizer: Any) -> Callable[[Sequence[int]], str] | None:
    """What turns the tokens of a whole answer into the text that vLLM makes of them one by one.

    None where the two may differ: only byte-level tokenizers make the same text of a token wherever
    it stands. vLLM keeps the beginning of a character back until the rest of it is there, so an
    answer that is cut inside a character goes its way.
    """
    from tokenizers.decoders import ByteLevel, DecodeStream

    backend = fast_backend(tokenizer)
    if backend is None or not isinstance(backend.decoder, ByteLevel):
        return None

    def decode(token_ids: Sequence[int]) -> str:
        text = str(backend.decode(token_ids, skip_special_tokens=True))
        if not text.endswith("\ufffd"):
            return text
        stream = DecodeStream(skip_special_tokens=True)
        return "".join(stream.step(backend, token_id) or "" for token_id in token_ids)

    return decode


def _separator(backend: Any) -> re.Pattern[str] | None:
    """Finds the special tokens that part a text; None where a text cannot be parted."""
    if backend.encode_special_tokens or not _is_local(backend.pre_tokenizer):
        return None
    tokens = list(backend.get_added_tokens_decoder().values())
    if any(token.single_word for token in tokens):
        return None
    contents = [token.content for token in tokens]
    parting = [token.content for token in tokens if _can_part(token, contents)]
    return re.compile("|".join(map(re.escape, parting))) if parting else None


def _can_part(token: Any, contents: Sequence[str]) -> bool:
    """Whether this added token is found wherever its text stands, and takes nothing else with it.

    The tokenizer looks for added tokens from left to right and takes the longest: one that holds
    this one, goes on after it or ends in its beginning could take (a part of) its text.
    """
    if token.normalized or token.lstrip or token.rstrip:
        return False
    own = token.content
    return not any(
        other != own and (own in other or any(other.endswith(own[:n]) for n in range(1, len(own))))
        for other in contents
    )


def _is_local(pre_tokenizer: Any) -> bool:
    """Whether pieces between special tokens are cut alike wherever they stand."""
    if pre_tokenizer is None:
        return False
    return _all_local(msgspec.json.decode(pre_tokenizer.__getstate__()))


def _all_local(step: dict[str, Any]) -> bool:
    if step["type"] == "Sequence":
        return all(_all_local(inner) for inner in step["pretokenizers"])
    return step["type"] in _LOCAL
