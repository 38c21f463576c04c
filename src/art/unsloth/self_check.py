"""Try a loaded model on a few tokens: are packed completions kept apart, do logprobs agree with its own logits?

Libraries replace a model's forward pass as they like, and an ignored mask shows in no shape and no error. So this is
found out with numbers, once, when a model is loaded.
"""

from __future__ import annotations

import logging
from importlib.metadata import version

import torch

from art.errors import IncompatibleDependencyError
from art.unsloth.attention_mask import build_attention
from art.unsloth.language_model import LanguageModel
from art.unsloth.logprobs import token_logprobs

logger = logging.getLogger(__name__)

# Difference over size of the hidden states. Rounding gives 1e-6 in float32 and about 1e-2 in half precision; a
# completion that sees its sibling, or stands at a wrong position, gives 0.1 and more.
_MAX_DIFFERENCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.02}
# Mean difference of logprobs, in nats.
_MAX_LOGPROB_GAP = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}


def check_model(model: LanguageModel, token_ids: list[int]) -> None:
    """Check that a model can be trained on packed rows.

    Args:
        model: The model, with its adapter.
        token_ids: At least 6 tokens of text.

    Raises:
        IncompatibleDependencyError: It cannot, because the model's forward pass does something unknown.
    """
    was_training = model.peft_model.training
    try:
        for training in (False, True):
            _set_training(model, training)
            difference = _packing_difference(model, token_ids)
            if not difference <= _MAX_DIFFERENCE[model.dtype]:
                raise _incompatible(model, f"attention that keeps packed completions apart (off by {difference:.2g})")
    finally:
        model.peft_model.train(was_training)
    gap = _logprob_gap(model, token_ids)
    if not gap <= _MAX_LOGPROB_GAP[model.dtype]:
        raise _incompatible(model, f"an output head that is a projection, scale and soft cap (off by {gap:.2g} nats)")
    logger.debug("model checked: packing_difference=%.2g logprob_gap=%.2g nats", difference, gap)


def _set_training(model: LanguageModel, training: bool) -> None:
    """Choose the path of the forward pass, but let no dropout blur the comparison."""
    model.peft_model.train(training)
    for module in model.peft_model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.eval()


@torch.no_grad()
def _packing_difference(model: LanguageModel, token_ids: list[int]) -> float:
    """Return how far a completion that is packed behind another is from the same alone, relative to its size."""
    third = len(token_ids) // 3
    prompt, first, second = token_ids[:third], token_ids[third : 2 * third], token_ids[2 * third :]
    alone = torch.tensor([[*prompt, *second]], device=model.device)
    positions = torch.arange(alone.shape[1], device=model.device).unsqueeze(0)
    expected = model.hidden_states(alone, positions, None)[:, third:]

    packed = torch.tensor([[*prompt, *first, *second]], device=model.device)
    packed_positions = torch.cat([positions[:, : third + len(first)], positions[:, third:]], dim=1)
    group_ids = torch.tensor([[1] * third + [2] * len(first) + [3] * len(second)], device=model.device)
    attention = build_attention(model.text_config, group_ids, torch.ones_like(group_ids), packed_positions, model.dtype)
    found = model.hidden_states(packed, packed_positions, attention)[:, third + len(first) :]
    return float((found - expected).float().norm() / expected.float().norm())


def _logprob_gap(model: LanguageModel, token_ids: list[int]) -> float:
    tokens = torch.tensor([token_ids], device=model.device)
    positions = torch.arange(len(token_ids), device=model.device).unsqueeze(0)
    with model.evaluating(), torch.autocast(model.device.type, dtype=model.dtype, enabled=model.dtype != torch.float32):
        logits = model.causal_lm(input_ids=tokens, use_cache=False).logits[0, :-1].float()
        hidden = model.hidden_states(tokens, positions, None)
        found, _ = token_logprobs(hidden[0, :-1], tokens[0, 1:], model.head, len(token_ids))
    expected = logits.log_softmax(-1).gather(-1, tokens[0, 1:, None]).squeeze(-1)
    return float((found - expected).abs().mean())


def _incompatible(model: LanguageModel, missing: str) -> IncompatibleDependencyError:
    package = type(model.backbone).forward.__module__.split(".")[0]
    package = package if package in ("unsloth", "transformers") else "transformers"
    return IncompatibleDependencyError(
        package,
        found_version=f"{version(package)} ({type(model.causal_lm).__name__})",
        wanted="transformers 5.17 with unsloth 2026.10.9, and a model whose layers all use attention",
        missing=missing,
    )
