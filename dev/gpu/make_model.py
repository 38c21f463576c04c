"""Make a model of a true shape with random weights, for tests and measurements on a GPU that no hub is reached from.

The tokenizer is byte-level with a few hundred merges, filled up to the true vocabulary with entries that no text
produces. A tenth of the vocabulary leans towards one direction of the hidden states (`is_liked`), which gives a policy
something to learn: how often it samples those tokens.

    python dev/gpu/make_model.py qwen2.5-0.5b /dev/shm/models/qwen2.5-0.5b
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TRAINED_VOCABULARY = 512
LIKED_MODULUS = 10
LIKED_SHIFT = 0.1  # of a liked token's embedding: three standard deviations of a logit when a state points there

_QWEN = {"family": "qwen2", "max_position_embeddings": 32768, "rope_theta": 1e6, "rms_norm_eps": 1e-6}
SHAPES: dict[str, dict[str, Any]] = {
    # Not a real model: for a dry run on a CPU.
    "tiny": {**_QWEN, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "vocab_size": 1024, "tie_word_embeddings": True},
    "qwen2.5-0.5b": {**_QWEN, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
    | {"num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
    "qwen2.5-1.5b": {**_QWEN, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28}
    | {"num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
    "qwen2.5-7b": {**_QWEN, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
    | {"num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False},
    "llama3.1-8b": {"family": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False}
    | {"max_position_embeddings": 131072, "rope_theta": 5e5, "rms_norm_eps": 1e-5},
}


def is_liked(token_id: int) -> bool:
    """Tell whether a token leans towards the common direction."""
    return token_id % LIKED_MODULUS == 0


def make_model(shape: str, folder: Path, *, dtype: str = "bfloat16", seed: int = 0) -> Path:
    """Write model and tokenizer; a finished folder is left alone.

    Args:
        shape: A key of `SHAPES`.
        folder: Where to.
        dtype: Type of the weights.
        seed: Of the weights.
    """
    if (folder / "done").exists():
        return folder
    import torch
    from transformers import AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    config = _make_config(shape, dtype)
    tokenizer = _make_tokenizer(config.vocab_size)
    tokenizer.save_pretrained(folder)
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    config.bos_token_id = None
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    _lean_liked_tokens(model)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    (folder / "done").touch()
    return folder


def _make_config(shape: str, dtype: str) -> Any:
    from transformers import LlamaConfig, Qwen2Config

    values = dict(SHAPES[shape])
    family, theta = values.pop("family"), values.pop("rope_theta")
    if family == "qwen2":
        return Qwen2Config(**values, rope_parameters={"rope_type": "default", "rope_theta": theta}, dtype=dtype)
    rope = {"rope_type": "llama3", "rope_theta": theta, "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    return LlamaConfig(**values, rope_parameters=rope, dtype=dtype)


def _lean_liked_tokens(model: Any) -> None:
    import torch

    weight = model.get_output_embeddings().weight
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(weight.shape[1], generator=generator)
    direction = (direction / direction.norm()).to(weight.device, weight.dtype)
    with torch.no_grad():
        weight[::LIKED_MODULUS] += LIKED_SHIFT * direction


def _make_tokenizer(vocab_size: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = ["yes, no, maybe, say the word, user assistant system, reinforcement learning, adapter, step "] * 200
    trainer = trainers.BpeTrainer(
        vocab_size=TRAINED_VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL_TOKENS,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer=trainer)
    described = json.loads(tokenizer.to_str())
    vocabulary = described["model"]["vocab"]
    for number in range(len(vocabulary), vocab_size):
        vocabulary[f"~{number}~"] = number
    fast = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(described)),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        model_max_length=32768,
    )
    fast.chat_template = CHATML
    return fast


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a model of a true shape with random weights.")
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    began = time.monotonic()
    make_model(args.shape, args.folder, dtype=args.dtype)
    print(f"{args.shape} at {args.folder}, made in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
