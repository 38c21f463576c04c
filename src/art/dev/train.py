"""Options of a training call, as scripts write them, and how they become settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Literal, Protocol, TypedDict, get_args

from art.dev.checks import (
    Check,
    check_section,
    flag,
    one_of,
    optional,
    real,
    refuse_unknown_keys,
    text,
    whole,
)
from art.dev.settings import (
    CISPO_EPSILON,
    CISPO_EPSILON_HIGH,
    PPO_EPSILON,
    ImportanceSamplingLevel,
    SFTSettings,
    TrainSettings,
)
from art.errors import ConfigurationError

logger = logging.getLogger(__name__)

_WHERE = "_config"


class TrainConfig(TypedDict, total=False):
    """RL options, the `_config` of `model.train`. Meanings and defaults: `art.dev.settings.TrainSettings`."""

    advantage_balance: float
    allow_training_without_logprobs: bool
    batch_token_normalization: bool
    epsilon: float
    epsilon_high: float | None
    grad_accumulation_sequences: int | None
    importance_sampling_level: Literal["token", "sequence", "average", "geometric_average"]
    kimi_k2_tau: float | None
    kl_penalty_coef: float
    kl_ref_adapter_path: str | None
    legacy_negative_advantage_cap: bool
    logprob_calculation_chunk_size: int
    mask_prob_ratio: bool
    max_negative_advantage_importance_sampling_weight: float
    num_trajectories_learning_rate_multiplier_power: float
    packed_sequence_length: int | None
    plot_tensors: bool
    ppo: bool
    precalculate_logprobs: bool
    scale_learning_rate_by_reward_std_dev: bool
    scale_rewards: bool
    truncated_importance_sampling: float | None


class TrainSFTConfig(TypedDict, total=False):
    """Options of supervised fine-tuning: there are none yet."""


class RLRates(Protocol):
    """What is read of the public `art.TrainConfig`; its `grad_accumulation_sequences` too, where it has one."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def kl_penalty_coef(self) -> float: ...


class SFTRates(Protocol):
    """What is read of the public `art.TrainSFTConfig`."""

    @property
    def learning_rate(self) -> float | list[float]: ...
    @property
    def batch_size(self) -> int | Literal["auto"]: ...


_CHECKS: Mapping[str, Check] = {
    "advantage_balance": real(at_least=-1, at_most=1),
    "allow_training_without_logprobs": flag,
    "batch_token_normalization": flag,
    "epsilon": optional(real(at_least=0)),
    "epsilon_high": optional(real(at_least=0)),
    "grad_accumulation_sequences": optional(whole(at_least=1)),
    "importance_sampling_level": one_of(*get_args(ImportanceSamplingLevel)),
    "kimi_k2_tau": optional(real()),
    "kl_penalty_coef": real(at_least=0),
    "kl_ref_adapter_path": optional(text),
    "legacy_negative_advantage_cap": flag,
    "logprob_calculation_chunk_size": whole(at_least=1),
    "mask_prob_ratio": flag,
    "max_negative_advantage_importance_sampling_weight": optional(real(above=0)),
    "num_trajectories_learning_rate_multiplier_power": real(),
    "packed_sequence_length": optional(whole(at_least=2)),
    "plot_tensors": flag,
    "ppo": flag,
    "precalculate_logprobs": flag,
    "scale_learning_rate_by_reward_std_dev": flag,
    "scale_rewards": flag,
    "truncated_importance_sampling": optional(real(above=0)),
}

# Keys of other releases that mean nothing here, and why.
_IGNORED: Mapping[str, str] = {
    "beta": "the penalty on drift is kl_penalty_coef now",
    "moe_routing_replay_bundle": "routing replay belongs to a trainer that this package does not have",
    "moe_routing_replay_path": "routing replay belongs to a trainer that this package does not have",
    "moe_routing_replay_strict": "routing replay belongs to a trainer that this package does not have",
}


def resolve_train_settings(config: RLRates, dev_config: TrainConfig | None = None) -> TrainSettings:
    """Complete the options of an RL training call.

    `dev_config` wins where both give a value. Without `epsilon` it is 0.2 for PPO, else 1.0; without `epsilon_high`
    it is `epsilon` for PPO, else 4.0; an `epsilon_high` of None is `epsilon`.

    Args:
        config: The public training configuration.
        dev_config: The `_config` of the call.

    Raises:
        ConfigurationError: A key is unknown (the nearest one is named), or a value is malformed or out of range.
    """
    options = check_section(_WHERE, _without_ignored(dict(dev_config or {})), _CHECKS)
    for key in ("kl_penalty_coef", "grad_accumulation_sequences"):
        value = getattr(config, key, None)
        if key not in options and value is not None:
            options[key] = _CHECKS[key](f"TrainConfig.{key}", value)
    options["learning_rate"] = real(at_least=0)("TrainConfig.learning_rate", config.learning_rate)
    ppo = options.get("ppo", False)
    if options.get("epsilon") is None:
        options["epsilon"] = PPO_EPSILON if ppo else CISPO_EPSILON
    if "epsilon_high" not in options and not ppo:
        options["epsilon_high"] = CISPO_EPSILON_HIGH
    elif options.get("epsilon_high") is None:
        options["epsilon_high"] = options["epsilon"]
    if options.get("scale_learning_rate_by_reward_std_dev"):
        logger.warning("_config['scale_learning_rate_by_reward_std_dev'] has no effect")
    return TrainSettings(**options)


def resolve_sft_settings(config: SFTRates, dev_config: TrainSFTConfig | None = None) -> SFTSettings:
    """Complete the options of a call of supervised fine-tuning.

    Args:
        config: The public configuration; a `batch_size` of "auto" is the default size.
        dev_config: The `_config` of the call, which has no keys yet.

    Raises:
        ConfigurationError: `dev_config` has a key, or a value is malformed or out of range.
    """
    refuse_unknown_keys(_WHERE, dict(dev_config or {}), TrainSFTConfig.__annotations__)
    check_rate = real(at_least=0)
    rates = config.learning_rate
    if isinstance(rates, list | tuple):
        learning_rate: float | tuple[float, ...] = tuple(
            check_rate(f"TrainSFTConfig.learning_rate[{index}]", rate) for index, rate in enumerate(rates)
        )
    else:
        learning_rate = check_rate("TrainSFTConfig.learning_rate", rates)
    if config.batch_size == "auto":
        return SFTSettings(learning_rate=learning_rate)
    return SFTSettings(learning_rate, whole(at_least=1)("TrainSFTConfig.batch_size", config.batch_size))


def rates_of_batches(settings: SFTSettings, num_batches: int) -> list[float]:
    """Return the learning rate of each batch.

    Raises:
        ConfigurationError: The settings list fewer rates than there are batches. More are a warning.
    """
    rates = settings.learning_rate
    if isinstance(rates, float):
        return [rates] * num_batches
    if len(rates) < num_batches:
        raise ConfigurationError(
            f"TrainSFTConfig.learning_rate lists {len(rates)} rates for {num_batches} batches of "
            f"{settings.batch_size}: give a rate for each batch, or a single number"
        )
    if len(rates) > num_batches:
        logger.warning(
            "more learning rates than batches: rates=%d batches=%d",
            len(rates),
            num_batches,
        )
    return list(rates[:num_batches])


def _without_ignored(options: dict[str, object]) -> dict[str, object]:
    for key, why in _IGNORED.items():
        if options.pop(key, None):
            logger.warning("_config[%r] is ignored: %s", key, why)
    return options
