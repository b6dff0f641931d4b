"""A model folder in Hugging Face's layout, written without torch.

A folder exists only when it is whole: it is built beside its place and renamed. `SHA256SUMS` in it
lets a later run see that nothing was damaged or cut since.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Tokenizer

SUMS = "SHA256SUMS"
Weights = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Llama:
    """The shape of a Llama model; `max_length` in tokens."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    max_length: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer with its special tokens (ids) and the template that makes a prompt of a chat."""

    tokenizer: Tokenizer
    bos: int
    eos: int
    pad: int
    chat_template: str

    def token(self, number: int) -> str:
        return str(self.tokenizer.id_to_token(number))


def make_once(folder: Path, build: Callable[[Path], None]) -> bool:
    """Have `build` write `folder` unless it is there and whole; say whether it was built."""
    if is_whole(folder):
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        build(unfinished)
        _write_sums(unfinished)
        unfinished.chmod(0o755)
        return _give_place(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _give_place(unfinished: Path, folder: Path) -> bool:
    """Give it its name; False when another process was faster, and its folder is in use."""
    if is_whole(folder):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    try:
        unfinished.rename(folder)
    except OSError:
        if is_whole(folder):
            return False
        raise
    return True


def is_whole(folder: Path) -> bool:
    """True when every file that was written is there with the bytes that were written."""
    sums = folder / SUMS
    if not sums.exists():
        return False
    lines = (line.split("  ", 1) for line in sums.read_text().splitlines())
    return all((folder / name).exists() and sha256(folder / name) == sum_ for sum_, name in lines)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_llama(folder: Path, shape: Llama, vocabulary: Vocabulary, weights: Weights) -> None:
    """Write what an engine needs to load the model offline: weights, configuration, tokenizer."""
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    vocabulary.tokenizer.save(str(folder / "tokenizer.json"))
    ends = {"bos_token_id": vocabulary.bos, "eos_token_id": vocabulary.eos}
    dtype = next(iter(weights.values())).dtype.name
    tied = "lm_head.weight" not in weights
    config = _config(shape, vocab_size=len(weights["model.embed_tokens.weight"]))
    config |= {"torch_dtype": dtype, "tie_word_embeddings": tied}
    _write_json(folder / "config.json", config | ends)
    _write_json(folder / "generation_config.json", ends)
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(shape, vocabulary))


def parameters(weights: Weights) -> int:
    return sum(int(np.prod(weight.shape)) for weight in weights.values())


def _config(shape: Llama, vocab_size: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden_size // shape.heads,
        "max_position_embeddings": shape.max_length,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "use_cache": True,
    }


def _tokenizer_config(shape: Llama, vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": vocabulary.token(vocabulary.bos),
        "eos_token": vocabulary.token(vocabulary.eos),
        "pad_token": vocabulary.token(vocabulary.pad),
        "model_max_length": shape.max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": vocabulary.chat_template,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1))


def _write_sums(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    (folder / SUMS).write_text("".join(lines))
