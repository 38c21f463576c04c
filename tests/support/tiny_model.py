"""A tiny random model with a chat template, and adapters for it, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TARGET_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_tiny_model(folder: Path) -> Path:
    """Write a two-layer Qwen3 (336 k parameters, head size 32, 319-token byte-level vocabulary) in float32."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = _make_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        initializer_range=0.08,
    )
    model = Qwen3ForCausalLM(config).to(torch.float32)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    return folder


def make_adapter(
    base_model: Path, folder: Path, *, seed: int, scale: float = 0.3, rank: int = 8, with_probe: bool = True
) -> Path:
    """Write a random adapter, with the probe that a trainer would have taken; scale 0 gives one without effect."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoTokenizer, Qwen3ForCausalLM

    base = Qwen3ForCausalLM.from_pretrained(base_model, dtype=torch.float32)
    config = LoraConfig(r=rank, lora_alpha=16, lora_dropout=0.0, task_type="CAUSAL_LM", target_modules=TARGET_MODULES)
    model = get_peft_model(base, config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    model.save_pretrained(folder)
    if with_probe:
        take_probe(model, AutoTokenizer.from_pretrained(base_model)).write(folder)
    return folder


def take_probe(model: Any, tokenizer: Any) -> Any:
    """Score the probe's tokens with a plain forward pass, adapter on and off."""
    import torch

    from art.probe import PROBE_TEXT, PROBE_TOKENS, AdapterProbe

    token_ids = tokenizer(PROBE_TEXT, add_special_tokens=False)["input_ids"][:PROBE_TOKENS]
    model.eval()

    def score() -> tuple[float, ...]:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([token_ids])).logits[0, :-1].float()
        picked = logits.log_softmax(-1).gather(-1, torch.tensor(token_ids[1:])[:, None])[:, 0]
        return tuple(picked.tolist())

    with_adapter = score()
    with model.disable_adapter():
        without_adapter = score()
    return AdapterProbe(tuple(token_ids), with_adapter, without_adapter, "float32")


def _make_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = ["yes no maybe say the word user assistant system reinforcement learning adapter step "] * 200
    trainer = trainers.BpeTrainer(
        vocab_size=509,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer=trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        model_max_length=1024,
    )
    fast.chat_template = CHATML
    return fast
