"""The keywords of `LocalBackend.train`, turned into the two configurations that a training step takes."""

from __future__ import annotations

from typing import Any, Literal

from art import dev
from art.errors import ConfigurationError
from art.types import TrainConfig


def build_configs(
    *,
    learning_rate: float,
    kl_penalty_coef: float,
    kl_ref_adapter_path: str | None,
    ppo: bool,
    loss_fn: Literal["cispo", "ppo"] | None,
    loss_fn_config: dict[str, Any] | None,
    adam_params: Any,
    normalize_advantages: bool,
    scale_rewards: bool,
    options: dict[str, Any],
) -> tuple[TrainConfig, dev.TrainConfig]:
    """Merge both spellings of the loss and leave out what was not given.

    Args:
        learning_rate: See `LocalBackend.train`.
        kl_penalty_coef: See there.
        kl_ref_adapter_path: See there.
        ppo: See there.
        loss_fn: "ppo" means `ppo=True`.
        loss_fn_config: Must be None.
        adam_params: Must be None.
        normalize_advantages: False means `scale_rewards=False`.
        scale_rewards: See there.
        options: Further keys of `art.dev.TrainConfig`; None values are left out.

    Raises:
        ConfigurationError: The spellings contradict each other, or something is not supported here.
    """
    if loss_fn not in (None, "cispo", "ppo"):
        raise ConfigurationError(f"loss_fn={loss_fn!r} is unknown; use 'cispo' or 'ppo'")
    if ppo and loss_fn == "cispo":
        raise ConfigurationError("ppo=True contradicts loss_fn='cispo'; give one of them")
    for name, value in (("loss_fn_config", loss_fn_config), ("adam_params", adam_params)):
        if value is not None:
            raise ConfigurationError(
                f"{name} is not supported by LocalBackend; use its own keywords, or trainer_args in _internal_config"
            )
    given = {
        "kl_penalty_coef": kl_penalty_coef,
        "kl_ref_adapter_path": kl_ref_adapter_path,
        "ppo": ppo or loss_fn == "ppo",
        "scale_rewards": scale_rewards and normalize_advantages,
        **options,
    }
    dev_config = dev.TrainConfig(**{key: value for key, value in given.items() if value is not None})  # type: ignore[typeddict-item]
    return TrainConfig(learning_rate=learning_rate, kl_penalty_coef=kl_penalty_coef), dev_config
