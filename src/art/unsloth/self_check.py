"""Try a loaded model on a few tokens: are packed completions kept apart, do logprobs agree with its own logits?

Libraries replace a model's forward pass as they like, and an ignored mask shows in no shape and no error. So this is
found out with numbers, once, when a model is loaded.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
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
# Several blocks, none of which ends where a completion does.
_LONG_ROW_TOKENS = 498
# Mean difference of logprobs, in nats.
_MAX_LOGPROB_GAP = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}


def check_model(model: LanguageModel, token_ids: list[int]) -> None:
    """Check that a model can be trained on packed rows.

    Where attention by blocks does not work, the model is told to use dense masks. On a GPU it is also measured what a
    forward pass keeps for the backward pass.

    Args:
        model: The model, with its adapter.
        token_ids: At least 6 tokens of text.

    Raises:
        IncompatibleDependencyError: It cannot, because the model's forward pass does something unknown.
    """
    if model.mask_form == "blocks":
        try:
            difference = _largest_difference(model, (token_ids * _LONG_ROW_TOKENS)[:_LONG_ROW_TOKENS])
        except (RuntimeError, TypeError, ValueError, AttributeError) as err:
            difference = math.inf
            logger.info("attention by blocks failed", exc_info=err)
        if not difference <= _MAX_DIFFERENCE[model.dtype]:
            model.mask_form, model.activation_bytes_per_token = "dense", None
            logger.warning(
                "attention by blocks does not work with %s (off by %.2g): packed rows need memory that grows with the "
                "square of their length",
                type(model.causal_lm).__name__,
                difference,
            )
    if model.mask_form == "dense":
        difference = _largest_difference(model, token_ids)
        if not difference <= _MAX_DIFFERENCE[model.dtype]:
            raise _incompatible(model, f"attention that keeps packed completions apart (off by {difference:.2g})")
    gap = _logprob_gap(model, token_ids)
    if not gap <= _MAX_LOGPROB_GAP[model.dtype]:
        raise _incompatible(model, f"an output head that is a projection, scale and soft cap (off by {gap:.2g} nats)")
    logger.info(
        "model checked: masks=%s packing_difference=%.2g logprob_gap=%.2g activation_bytes_per_token=%s",
        model.mask_form,
        difference,
        gap,
        None if model.activation_bytes_per_token is None else round(model.activation_bytes_per_token),
    )


def _largest_difference(model: LanguageModel, token_ids: list[int]) -> float:
    """Return how far a completion that is packed behind another is from the same alone, relative to its size.

    Seen in evaluation and in training mode, which take different ways through the libraries.
    """
    was_training = model.peft_model.training
    third = len(token_ids) // 3
    prompt, first, second = token_ids[:third], token_ids[third : 2 * third], token_ids[2 * third :]
    alone = torch.tensor([[*prompt, *second]], device=model.device)
    positions = torch.arange(alone.shape[1], device=model.device).unsqueeze(0)
    packed = torch.tensor([[*prompt, *first, *second]], device=model.device)
    packed_positions = torch.cat([positions[:, : third + len(first)], positions[:, third:]], dim=1)
    group_ids = torch.tensor([[1] * third + [2] * len(first) + [3] * len(second)], device=model.device)
    parent_ids = torch.ones_like(group_ids)
    differences = []
    try:
        _set_training(model, False)
        with torch.no_grad():
            expected = model.hidden_states(alone, positions, None)[:, third:].float()
        for training in (False, True):
            _set_training(model, training)
            attention = build_attention(
                model.text_config, group_ids, parent_ids, packed_positions, model.dtype, model.mask_form
            )
            # With gradients in training mode, as in a step: what is compiled for one serves for the other.
            with torch.set_grad_enabled(training), _noting_activations(model, packed.shape[1], wanted=training):
                hidden = model.hidden_states(packed, packed_positions, attention)
            found = hidden.detach()[:, third + len(first) :].float()
            differences.append(float((found - expected).norm() / expected.norm()))
    finally:
        model.peft_model.train(was_training)
    return max(differences)


@contextmanager
def _noting_activations(model: LanguageModel, num_tokens: int, *, wanted: bool) -> Iterator[None]:
    """Note what a forward pass on a GPU keeps, with no activation recomputed."""
    if not wanted or model.device.type != "cuda":
        yield
        return
    model.recompute_activations(False)
    before = torch.cuda.memory_allocated(model.device)
    yield
    model.activation_bytes_per_token = (torch.cuda.memory_allocated(model.device) - before) / num_tokens


def _set_training(model: LanguageModel, training: bool) -> None:
    """Choose the path of the forward pass, but let no dropout blur the comparison."""
    model.peft_model.train(training)
    for module in model.peft_model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.eval()


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
