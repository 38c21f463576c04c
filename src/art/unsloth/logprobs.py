"""From tokens to logprobs and entropies, without ever holding vocabulary times length at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.utils.checkpoint import checkpoint

from art.loss import shift_tensor


@dataclass(frozen=True)
class OutputHead:
    """How hidden states become logits.

    Attributes:
        module: The output embedding, with its bias and adapter where it has them.
        scale: What logits are multiplied by.
        softcap: Limit c of the soft cap c · tanh(logits / c), or None.
    """

    module: Any
    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, causal_lm: Any) -> OutputHead:
        """Read the head of a causal language model."""
        config = causal_lm.config.get_text_config()
        scale = float(getattr(config, "logit_scale", None) or getattr(config, "lm_head_multiplier", None) or 1.0)
        divisor = getattr(config, "logits_scaling", None)
        if divisor:
            # Granite divides by it. HyperCLOVA X has the same name and multiplies.
            scale = float(divisor) if config.model_type == "hyperclovax" else 1.0 / float(divisor)
        softcap = getattr(config, "final_logit_softcapping", None)
        return cls(causal_lm.get_output_embeddings(), scale, float(softcap) if softcap else None)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits (N, V) of hidden states (N, H)."""
        logits = self.module(hidden.to(self.module.weight.dtype)).float()
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return cast(torch.Tensor, logits)


def token_logprobs(
    hidden: torch.Tensor, targets: torch.Tensor, head: OutputHead, chunk_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Score target tokens.

    The logits of a chunk are dropped after use, and made again for the backward pass.

    Args:
        hidden: Last hidden states (N, H), with or without gradient.
        targets: Token ids (N,), the tokens that the states predict.
        head: The output head.
        chunk_tokens: Tokens whose logits are made at once.

    Returns:
        Logprobs (N,), and entropies (N,) without gradient; float32, in nats.
    """
    if len(targets) == 0:
        nothing = hidden.sum(dim=-1).float()  # empty, but still connected
        return nothing, nothing.detach()
    scores = [
        checkpoint(_score_chunk, states, ids, head, use_reentrant=False)
        if torch.is_grad_enabled()
        else _score_chunk(states, ids, head)
        for states, ids in zip(torch.split(hidden, chunk_tokens), torch.split(targets, chunk_tokens), strict=True)
    ]
    return torch.cat([logprobs for logprobs, _ in scores]), torch.cat([entropies for _, entropies in scores])


def scatter_predictions(values: torch.Tensor, is_wanted: torch.Tensor, fill: float = 0.0) -> torch.Tensor:
    """Put values (N,) at the N True places of a mask (B, S), and `fill` everywhere else."""
    scattered = torch.full(is_wanted.shape, fill, dtype=values.dtype, device=values.device)
    return scattered.masked_scatter(is_wanted, values)


def wanted_predictions(assistant_mask: torch.Tensor, logprobs: torch.Tensor) -> torch.Tensor:
    """Return the prediction-aligned mask (B, S) of what a loss looks at: trained tokens, and sampled ones.

    Args:
        assistant_mask: Token-aligned, (B, S).
        logprobs: Token-aligned, (B, S), NaN where nobody sampled.
    """
    return shift_tensor(assistant_mask.bool() | ~torch.isnan(logprobs), False)


def _score_chunk(hidden: torch.Tensor, targets: torch.Tensor, head: OutputHead) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head.logits(hidden)
    normalizer = logits.logsumexp(dim=-1)
    logprobs = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - normalizer
    with torch.no_grad():
        entropies = torch.special.entr((logits - normalizer.unsqueeze(-1)).exp()).sum(dim=-1)
    return logprobs, entropies
