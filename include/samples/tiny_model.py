"""A model for tests: 0.4 million random weights that a real engine loads in seconds.

It answers nonsense, always the same for the same seed, which is all that a test of resuming,
draining or counting needs.

    python -m samples.tiny_model [FOLDER]          default: var/models/tiny
"""

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from samples.checkpoint import Llama, Vocabulary, Weights, make_once, write_llama

FOLDER = Path("var/models/tiny")
SHAPE = Llama(hidden_size=64, intermediate_size=256, layers=2, heads=2, kv_heads=2, max_length=2048)
VOCAB_SIZE = 2048
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_model(folder: Path = FOLDER) -> Path:
    """Make the model's folder, unless it is there and whole; return it."""
    make_once(folder, build)
    return folder


def build(folder: Path) -> None:
    vocabulary = Vocabulary(_tokenizer(), bos=0, eos=2, pad=3, chat_template=CHAT_TEMPLATE)
    size = vocabulary.tokenizer.get_vocab_size()
    write_llama(folder, SHAPE, vocabulary, random_weights(SHAPE, size, seed=0))


def random_weights(shape: Llama, vocab_size: int, seed: int) -> Weights:
    """Return weights as a fresh model would have: normal, deviation 0.02, norms of one."""
    random = np.random.default_rng(seed)
    hidden, wide = shape.hidden_size, shape.intermediate_size
    narrow = hidden // shape.heads * shape.kv_heads
    sizes = {"model.embed_tokens": (vocab_size, hidden), "lm_head": (vocab_size, hidden)}
    norms = ["model.norm"]
    for layer in (f"model.layers.{n}" for n in range(shape.layers)):
        sizes |= {f"{layer}.self_attn.{p}_proj": (hidden, hidden) for p in "qo"}
        sizes |= {f"{layer}.self_attn.{p}_proj": (narrow, hidden) for p in "kv"}
        sizes |= {f"{layer}.mlp.{p}_proj": (wide, hidden) for p in ("gate", "up")}
        sizes |= {f"{layer}.mlp.down_proj": (hidden, wide)}
        norms += [f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"]
    drawn = {f"{n}.weight": 0.02 * random.standard_normal(size) for n, size in sizes.items()}
    ones = {f"{name}.weight": np.ones(hidden) for name in norms}
    return {name: weight.astype(np.float16) for name, weight in (drawn | ones).items()}


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    return tokenizer


def _texts() -> Iterator[str]:
    """Yield text that is on every machine: the standard library's source."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.glob("*.py"))[:150]:
        yield path.read_text("utf-8", "replace")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    print(f"model: tiny random weights in {make_tiny_model(folder)}")


if __name__ == "__main__":
    main()
