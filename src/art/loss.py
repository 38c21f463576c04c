"""The policy loss of packed rows: tensor maths only.

Stored tensors are token-aligned: entry s speaks of token s. A forward pass yields prediction-aligned values: position s
speaks of token s + 1. `shift_tensor` goes from the first to the second, `unshift_tensor` back; nothing else crosses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pydantic
import torch

from art.dev.settings import ImportanceSamplingLevel, TrainSettings
from art.dev.train import TrainConfig, resolve_train_settings
from art.utils.group_aggregate import group_aggregate

if TYPE_CHECKING:
    from art.preprocessing.inputs import TrainInputs

# Keeps a mean over no trainable tokens at 0.
_COUNT_EPSILON = 1e-6


class Loss(pydantic.BaseModel):
    """What `loss_fn` found, as tensors without dimensions.

    Attributes:
        mean_policy_loss: Loss per trainable token.
        mean_entropy: Weighted entropy per trainable token, in nats; None when no entropies were given.
        policy_loss_sum: Loss summed over the trainable tokens.
        probs_corr: Pearson correlation between the old and the new probabilities of sampled tokens; NaN when it is
            undefined.
        kl_policy_ref: Mean log ratio of policy to reference; None without a penalty or a reference.
        reduction: Which of the two losses `policy_loss` is.
    """

    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    mean_policy_loss: torch.Tensor
    mean_entropy: torch.Tensor | None
    policy_loss_sum: torch.Tensor
    probs_corr: torch.Tensor
    kl_policy_ref: torch.Tensor | None = None
    reduction: Literal["mean", "sum"] = "mean"

    @property
    def policy_loss(self) -> torch.Tensor:
        """The loss to descend, reduced as asked for."""
        return self.mean_policy_loss if self.reduction == "mean" else self.policy_loss_sum

    @property
    def entropy(self) -> torch.Tensor | None:
        """The mean entropy, under its newer name."""
        return self.mean_entropy


def loss_fn(
    inputs: TrainInputs,
    new_logprobs: torch.Tensor,
    ref_logprobs: torch.Tensor | None,
    entropies: torch.Tensor | None,
    experimental_config: TrainConfig | TrainSettings,
    reduction: Literal["mean", "sum"] = "mean",
) -> Loss:
    """Compute the CISPO or PPO loss of packed rows.

    Sums and means go over the whole tensor, so rows of one call share their denominator.

    Args:
        inputs: Token-aligned tensors of shape (B, S). Where `original_logprobs` is present, `logprobs` were recomputed
            and it holds the sampler's.
        new_logprobs: Prediction-aligned, (B, S), with gradient. Values at untrained positions do not matter.
        ref_logprobs: The same under the reference policy, or None.
        entropies: Prediction-aligned, (B, S), in nats, or None.
        experimental_config: Options as a script writes them, or complete settings. For the former a
            `kl_penalty_coef` of `inputs["config"]` counts where the options have none.
        reduction: What `Loss.policy_loss` is to be.

    Raises:
        ConfigurationError: An option is unknown or malformed.
    """
    settings = _resolve(experimental_config, inputs)
    old_logprobs = shift_tensor(inputs["logprobs"], float("nan")).to(new_logprobs.dtype)
    advantages = shift_tensor(inputs["advantages"], 0.0).to(new_logprobs.dtype)
    weights = shift_tensor(inputs["weights"], 0.0).to(new_logprobs.dtype)
    is_trained = shift_tensor(inputs["assistant_mask"], False).bool()
    group_ids = shift_tensor(inputs["group_ids"], 0)
    num_trained = is_trained.sum() + _COUNT_EPSILON

    probs_corr = _correlate_probs(old_logprobs, new_logprobs)
    old_logprobs = torch.where(torch.isnan(old_logprobs), new_logprobs.detach(), old_logprobs)
    # Untrained positions get a ratio of exactly 1, so that nothing there can overflow and spoil a gradient.
    log_ratio = torch.where(is_trained, new_logprobs - old_logprobs, 0.0)
    ratio = _importance_ratio(log_ratio, group_ids, is_trained, settings.importance_sampling_level)
    ratio = _restrict_ratio(ratio, advantages, settings)
    if settings.kimi_k2_tau is not None:
        advantages = advantages - settings.kimi_k2_tau * log_ratio.detach()
    kl_policy_ref = None
    if settings.kl_penalty_coef > 0 and ref_logprobs is not None:
        drift = torch.where(is_trained, (new_logprobs - ref_logprobs).detach(), 0.0)
        kl_policy_ref = drift.sum() / num_trained
        advantages = advantages + settings.kl_penalty_coef * torch.where(is_trained, kl_policy_ref - drift, 0.0)

    token_loss = _token_loss(new_logprobs, ratio, advantages, settings)
    if settings.truncated_importance_sampling is not None:
        correction = _sampler_correction(inputs, old_logprobs, new_logprobs, ratio)
        token_loss = token_loss * correction.clamp(max=settings.truncated_importance_sampling).detach()
    token_loss = torch.where(is_trained, token_loss * weights, 0.0)
    mean_entropy = None
    if entropies is not None:
        mean_entropy = torch.where(is_trained, entropies.detach() * weights, 0.0).sum() / num_trained
    return Loss(
        mean_policy_loss=token_loss.sum() / num_trained,
        mean_entropy=mean_entropy,
        policy_loss_sum=token_loss.sum(),
        probs_corr=probs_corr,
        kl_policy_ref=kl_policy_ref,
        reduction=reduction,
    )


def shift_tensor(tensor: torch.Tensor, pad: int | float | bool) -> torch.Tensor:
    """Turn token-aligned values (B, S) into prediction-aligned ones: entry s becomes what was at s + 1.

    Args:
        tensor: Values by token.
        pad: What the last position gets, which predicts no stored token.
    """
    return torch.nn.functional.pad(tensor[:, 1:], (0, 1), value=pad)


def unshift_tensor(tensor: torch.Tensor, pad: int | float | bool) -> torch.Tensor:
    """Turn prediction-aligned values (B, S) into token-aligned ones: entry s becomes what was at s - 1.

    Args:
        tensor: Values by predicting position.
        pad: What the first token gets, which nothing predicts.
    """
    return torch.nn.functional.pad(tensor[:, :-1], (1, 0), value=pad)


class _NoRates:
    learning_rate = 0.0
    kl_penalty_coef = 0.0


def _resolve(config: TrainConfig | TrainSettings, inputs: TrainInputs) -> TrainSettings:
    if isinstance(config, TrainSettings):
        return config
    return resolve_train_settings(inputs.get("config") or _NoRates(), config)


def _correlate_probs(old_logprobs: torch.Tensor, new_logprobs: torch.Tensor) -> torch.Tensor:
    was_sampled = ~torch.isnan(old_logprobs)
    if was_sampled.sum() < 2:
        return new_logprobs.new_tensor(float("nan"))
    probs = torch.stack([old_logprobs[was_sampled].exp(), new_logprobs.detach()[was_sampled].exp()])
    return torch.corrcoef(probs)[0, 1]


def _importance_ratio(
    log_ratio: torch.Tensor, group_ids: torch.Tensor, is_trained: torch.Tensor, level: ImportanceSamplingLevel
) -> torch.Tensor:
    token_ratio = log_ratio.exp()
    if level == "token":
        return token_ratio
    # Labels are small integers, 0 for everything untrained: ids are 64 bits wide and do not survive any float type.
    labels = (torch.unique(group_ids, return_inverse=True)[1] + 1) * is_trained
    sequence_ratio = group_aggregate(log_ratio, by=labels, reduce="mean").exp()
    if level == "sequence":
        return sequence_ratio
    if level == "average":
        return (token_ratio + sequence_ratio) / 2
    return token_ratio.sqrt() * sequence_ratio.sqrt()


def _restrict_ratio(ratio: torch.Tensor, advantages: torch.Tensor, settings: TrainSettings) -> torch.Tensor:
    cap = settings.max_negative_advantage_importance_sampling_weight
    if cap is not None:
        is_capped = torch.ones_like(advantages, dtype=torch.bool)
        if not settings.legacy_negative_advantage_cap:
            is_capped = advantages < 0
        ratio = torch.where(is_capped, ratio.clamp(max=cap), ratio)
    if settings.mask_prob_ratio:
        is_inside = (ratio > 1 - settings.epsilon) & (ratio < 1 + settings.epsilon_high)
        ratio = torch.where(is_inside, ratio, 0.0)
    return ratio


def _token_loss(
    new_logprobs: torch.Tensor, ratio: torch.Tensor, advantages: torch.Tensor, settings: TrainSettings
) -> torch.Tensor:
    lowest, highest = 1 - settings.epsilon, 1 + settings.epsilon_high
    if settings.ppo:
        return -torch.min(ratio * advantages, ratio.clamp(lowest, highest) * advantages)
    return -ratio.detach().clamp(lowest, highest) * advantages * new_logprobs


def _sampler_correction(
    inputs: TrainInputs, old_logprobs: torch.Tensor, new_logprobs: torch.Tensor, ratio: torch.Tensor
) -> torch.Tensor:
    """Return the ratio of the old policy to the sampler, or the policy ratio itself when they are one."""
    original = inputs.get("original_logprobs")
    if original is None:
        return ratio
    original = shift_tensor(original, float("nan")).to(new_logprobs.dtype)
    original = torch.where(torch.isnan(original), new_logprobs.detach(), original)
    return (old_logprobs - original).exp()
