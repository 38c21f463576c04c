"""What a pipeline asks a `LocalBackend` beside training; `art.backend.Backend` says what for."""

from __future__ import annotations

import logging
from typing import Any

from art import dev
from art.local.hosting import HostedService
from art.local.train_options import build_configs
from art.model import TrainableModel

logger = logging.getLogger(__name__)


def check_options(model: TrainableModel[Any, Any], options: dict[str, Any]) -> None:
    """Refuse what `LocalBackend.train` would refuse, before anything runs; warn where rollouts and training alternate.

    Raises:
        ConfigurationError: An option is not supported.
    """
    build_configs(
        learning_rate=options["learning_rate"],
        kl_penalty_coef=0.0,
        kl_ref_adapter_path=None,
        ppo=False,
        loss_fn=options["loss_fn"],
        loss_fn_config=options["loss_fn_config"],
        adam_params=options["adam_params"],
        normalize_advantages=options["normalize_advantages"],
        scale_rewards=True,
        options={},
    )
    if not dev.is_dedicated_mode(model._internal_config or dev.InternalModelConfig()):
        logger.warning(
            "%s is trained in shared mode: rollouts pause while a step is trained; give trainer and server GPUs of "
            "their own (trainer_gpu_ids and inference_gpu_ids in _internal_config) to have both at once",
            model.name,
        )


def describe_serving(hosted: HostedService) -> str:
    """Say in words whether the server answers, and with what."""
    where = "not started" if hosted.address is None else f"{hosted.address[0]}:{hosted.address[1]}"
    if hosted.gate.failure is not None:
        return f"{where}, given up: {hosted.gate.failure}"
    trouble, _ = hosted.gate.trouble
    state = f"rollouts wait: {trouble}" if trouble else "open to rollouts"
    return f"{where}, serves step {hosted.served_step}, {state}"


async def work_done(hosted: HostedService) -> tuple[float, float]:
    """Count the tokens that the server has processed, and the optimizer steps done, so far."""
    return await hosted.actor.tokens_processed() or 0.0, float(hosted.rows_trained)
