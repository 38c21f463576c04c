"""Every setting, complete and frozen, with its default: the one place a default is written.

The typed dictionaries beside this file are what scripts write, in part; the resolving functions turn them into these
once, at the top. Below that point nobody looks a key up. Not for validation: that is done while resolving.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ImportanceSamplingLevel = Literal["token", "sequence", "average", "geometric_average"]
PauseMode = Literal["keep", "wait"]

CISPO_EPSILON = 1.0
CISPO_EPSILON_HIGH = 4.0
PPO_EPSILON = 0.2


@dataclass(frozen=True)
class TrainSettings:
    """Everything that one RL training step is told, resolved by `art.dev.train.resolve_train_settings`.

    The defaults are those of a call without options (CISPO). `epsilon` and `epsilon_high` depend on `ppo`, so make
    other combinations through the resolving function.

    Attributes:
        learning_rate: Rate of the optimiser, before the multiplier by the number of trajectories.
        kl_penalty_coef: Weight β of the penalty on drift from the reference; 0 means no reference is computed.
        kl_ref_adapter_path: Folder of the reference adapter; None: the base model, adapter switched off.
        ppo: The clipped surrogate of PPO in place of CISPO.
        epsilon: The ratio's lower bound is 1 - epsilon.
        epsilon_high: The ratio's upper bound is 1 + epsilon_high.
        advantage_balance: In [-1, 1]; above 0 weakens negative advantages, below 0 positive ones.
        scale_rewards: Divide a group's advantages by the standard deviation of its rewards.
        importance_sampling_level: What the ratio is taken over.
        max_negative_advantage_importance_sampling_weight: Cap on the ratio of tokens with negative advantage.
        legacy_negative_advantage_cap: Apply that cap to all tokens, as releases up to 0.5.17 did.
        mask_prob_ratio: Give tokens whose ratio is out of bounds no weight.
        kimi_k2_tau: Weight τ of the log ratio taken off the advantage; None: not used.
        precalculate_logprobs: Recompute the old logprobs with the current weights before the first update.
        allow_training_without_logprobs: Also train turns that carry no sampled logprobs.
        plot_tensors: Write a picture of the packed batch.
        truncated_importance_sampling: Upper bound on the correction for the sampler's logprobs; None: not used.
        scale_learning_rate_by_reward_std_dev: Accepted, has no effect.
        logprob_calculation_chunk_size: Tokens whose logits are made at once; a shorter last chunk is fine.
        num_trajectories_learning_rate_multiplier_power: The rate is multiplied by (completions in row) ** power.
        packed_sequence_length: Tokens in a packed row; None: chosen from the longest trajectory.
        grad_accumulation_sequences: Packed rows to a gradient step; None: `gradient_accumulation_steps` of the
            model's trainer arguments.
        batch_token_normalization: Divide by the trainable tokens of the whole batch, not by those of the row.
    """

    learning_rate: float = 5e-6
    kl_penalty_coef: float = 0.0
    kl_ref_adapter_path: str | None = None
    ppo: bool = False
    epsilon: float = CISPO_EPSILON
    epsilon_high: float = CISPO_EPSILON_HIGH
    advantage_balance: float = 0.0
    scale_rewards: bool = True
    importance_sampling_level: ImportanceSamplingLevel = "token"
    max_negative_advantage_importance_sampling_weight: float | None = None
    legacy_negative_advantage_cap: bool = False
    mask_prob_ratio: bool = False
    kimi_k2_tau: float | None = None
    precalculate_logprobs: bool = False
    allow_training_without_logprobs: bool = False
    plot_tensors: bool = False
    truncated_importance_sampling: float | None = None
    scale_learning_rate_by_reward_std_dev: bool = False
    logprob_calculation_chunk_size: int = 1024
    num_trajectories_learning_rate_multiplier_power: float = 0.0
    packed_sequence_length: int | None = None
    grad_accumulation_sequences: int | None = None
    batch_token_normalization: bool = False
