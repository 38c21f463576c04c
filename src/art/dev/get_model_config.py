"""A model's configuration, completed: what the script wrote over the defaults, fitted to the machine."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from art import checkpoints
from art.dev.model import InternalModelConfig
from art.dev.settings import (
    CPU_DTYPE,
    CPU_ENGINE_DEFAULTS,
    CPU_OPTIMIZER,
    ENGINE_DEFAULT_LORA_RANK,
    ENGINE_DEFAULTS,
    INIT_DEFAULTS,
    LORA_RANKS,
    PEFT_DEFAULTS,
    SHARED_GPU_UTILIZATION,
    TRAINER_DEFAULTS,
)
from art.dev.validate import is_dedicated_mode, validate_internal_config

logger = logging.getLogger(__name__)

_COMPLETED = (
    "init_args",
    "engine_args",
    "peft_args",
    "trainer_args",
    "tinker_args",
    "tinker_native_args",
)
_CUDA_OPTIMIZER_MARKS = ("bit", "bnb", "ademamix", "apex", "npu", "xla")


def get_model_config(
    base_model: str,
    output_dir: str,
    config: InternalModelConfig | None,
    *,
    has_cuda: bool | None = None,
) -> InternalModelConfig:
    """Complete a model's configuration.

    The caller's dictionary is not changed, and the result shares nothing with it. `init_args["model_name"]` is the
    newest checkpoint below `output_dir` if there is one: this is how a run resumes. `dtype`s become names.

    Args:
        base_model: Hub id or path of the base model.
        output_dir: The model's folder, which holds `checkpoints/`.
        config: What the script wrote; None for nothing.
        has_cuda: Whether the machine has CUDA. False fits the configuration to a CPU; None: do not adjust.

    Raises:
        ConfigurationError: See `art.dev.validate.validate_internal_config`.
        NotImplementedError: See there.
    """
    validate_internal_config(config)
    given: dict[str, Any] = copy.deepcopy(dict(config or {}))
    dedicated = is_dedicated_mode(given)  # type: ignore[arg-type]
    sections = {key: dict(given.get(key) or {}) for key in ("init_args", "engine_args", "peft_args", "trainer_args")}
    _translate_old_keys(sections, dedicated)
    adjusted = _fit_to_cpu(sections, dedicated) if has_cuda is False else []
    if adjusted:
        logger.info("configuration fitted to a machine without CUDA: %s", ", ".join(adjusted))
    completed = {
        key: {**defaults, **sections[key]} for key, defaults in _defaults(base_model, output_dir, dedicated).items()
    }
    if (given.get("serving") or {}).get("share_gpu"):
        completed["engine_args"].setdefault("gpu_memory_utilization", SHARED_GPU_UTILIZATION)
    _choose_width(completed["init_args"], sections["init_args"])
    _raise_lora_rank(completed["engine_args"], completed["peft_args"]["r"])
    if (step := checkpoints.newest_step(Path(output_dir))) is not None:
        completed["init_args"]["model_name"] = str(checkpoints.checkpoint_dir(Path(output_dir), step))
    rest = {key: value for key, value in given.items() if key not in _COMPLETED}
    return cast(InternalModelConfig, {**completed, "tinker_args": None, **rest})


def default_target_modules(base_model: str) -> list[str]:
    """Return the modules that an adapter on this base model gets by default: all projections of a layer."""
    return list(PEFT_DEFAULTS["target_modules"])


def _defaults(base_model: str, output_dir: str, dedicated: bool) -> dict[str, dict[str, Any]]:
    return {
        "init_args": {
            **INIT_DEFAULTS,
            "model_name": base_model,
            **({} if dedicated else {"fast_inference": False}),
        },
        "engine_args": {
            **ENGINE_DEFAULTS,
            "model": base_model,
            "enable_sleep_mode": not dedicated,
        },
        "peft_args": {
            **PEFT_DEFAULTS,
            "target_modules": default_target_modules(base_model),
        },
        "trainer_args": {**TRAINER_DEFAULTS, "output_dir": output_dir},
    }


def _translate_old_keys(sections: Mapping[str, dict[str, Any]], dedicated: bool) -> None:
    init, engine = sections["init_args"], sections["engine_args"]
    for section in (init, engine):
        if section.get("dtype") is not None:
            section["dtype"] = str(section["dtype"]).removeprefix("torch.")
    if init.get("fast_inference") and not dedicated:
        logger.warning("init_args['fast_inference'] is ignored: the inference engine is never inside the trainer")
        init["fast_inference"] = False
    if "gpu_memory_utilization" in init:
        engine.setdefault("gpu_memory_utilization", init["gpu_memory_utilization"])


def _choose_width(init: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Let another width that the caller asked for replace the default of 4 bits."""
    if "load_in_4bit" not in given and (given.get("load_in_8bit") or given.get("load_in_16bit")):
        init["load_in_4bit"] = False


def _raise_lora_rank(engine: dict[str, Any], rank: int) -> None:
    """Let the engine take the adapter: its limit is the next rank that vLLM knows, from what was asked for."""
    limit = engine.get("max_lora_rank", ENGINE_DEFAULT_LORA_RANK)
    raised = next(allowed for allowed in LORA_RANKS if allowed >= max(rank, limit))
    if raised == limit:
        return
    if "max_lora_rank" in engine:
        logger.warning(
            "engine_args['max_lora_rank'] raised from %d to %d: peft_args['r'] is %d",
            limit,
            raised,
            rank,
        )
    engine["max_lora_rank"] = raised


def _fit_to_cpu(sections: Mapping[str, dict[str, Any]], dedicated: bool) -> list[str]:
    """Change what cannot work without CUDA and add what a CPU needs; return what was changed, in words."""
    init, engine, trainer = (
        sections["init_args"],
        sections["engine_args"],
        sections["trainer_args"],
    )
    optimizer = trainer.get("optim", TRAINER_DEFAULTS["optim"])
    forced: list[tuple[dict[str, Any], str, object]] = [(init, "load_in_4bit", False)]
    if init.get("load_in_8bit"):
        forced.append((init, "load_in_8bit", False))
    if not dedicated:
        forced.append((engine, "enable_sleep_mode", False))
    if any(mark in optimizer for mark in _CUDA_OPTIMIZER_MARKS):
        forced.append((trainer, "optim", CPU_OPTIMIZER))
    dtype = init.get("dtype") or CPU_DTYPE
    preferred = [
        (init, "dtype", dtype),
        (engine, "dtype", dtype),
        *((engine, key, value) for key, value in CPU_ENGINE_DEFAULTS.items()),
    ]
    changes = forced + [change for change in preferred if change[0].get(change[1]) is None]
    for section, key, value in changes:
        section[key] = value
    return [f"{_name(sections, section)}.{key}={value}" for section, key, value in changes]


def _name(sections: Mapping[str, dict[str, Any]], section: dict[str, Any]) -> str:
    return next(name for name, candidate in sections.items() if candidate is section)
