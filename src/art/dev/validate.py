"""What a model's configuration may not say: unknown keys, wrong types, values out of range, contradictions.

Everything raises `ConfigurationError`, a ValueError, except what other releases have and this package does not: that is
a NotImplementedError. Nothing is changed here; defaults are `get_model_config.py`'s.
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Mapping
from functools import cache
from pathlib import PurePath
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from art.dev.checks import Check, nearest, optional, real, refuse_unknown_keys, whole
from art.dev.engine import EngineArgs
from art.dev.model import InitArgs, InternalModelConfig, PeftArgs
from art.dev.openai_server import OpenAIServerConfig, ServerArgs
from art.dev.serving import resolve_serving_settings
from art.dev.settings import LORA_RANKS
from art.dev.trainer_args import TrainerArgs
from art.errors import ConfigurationError

logger = logging.getLogger(__name__)

_WHERE = "_internal_config"
_SECTIONS: Mapping[str, Any] = {
    "init_args": InitArgs,
    "engine_args": EngineArgs,
    "peft_args": PeftArgs,
    "trainer_args": TrainerArgs,
}
# Typed dictionaries themselves: pydantic takes the standard library's only from Python 3.12 on.
_CHECKED_APART = frozenset({*_SECTIONS, "serving", "tinker_args", "tinker_native_args"})
# Switches that scripts for older releases still set.
_OF_OLDER_RELEASES = frozenset({"_decouple_vllm_and_unsloth"})
_SECRETS = frozenset({"token", "hub_token", "push_to_hub_token", "api_key"})
_COUNT = whole(at_least=1)
_RANK = whole(at_least=1, at_most=LORA_RANKS[-1])
_RANGES: Mapping[tuple[str, str], Check] = {
    ("init_args", "max_seq_length"): whole(at_least=2),
    ("init_args", "gpu_memory_utilization"): real(above=0, at_most=1),
    ("engine_args", "gpu_memory_utilization"): real(above=0, at_most=1),
    ("engine_args", "max_loras"): _COUNT,
    ("engine_args", "max_cpu_loras"): optional(_COUNT),
    ("engine_args", "max_lora_rank"): _RANK,
    ("engine_args", "tensor_parallel_size"): _COUNT,
    ("engine_args", "pipeline_parallel_size"): _COUNT,
    ("peft_args", "r"): _RANK,
    ("peft_args", "lora_alpha"): real(above=0),
    ("peft_args", "lora_dropout"): real(at_least=0, at_most=1),
    ("trainer_args", "adam_beta1"): real(at_least=0, at_most=1),
    ("trainer_args", "adam_beta2"): real(at_least=0, at_most=1),
    ("trainer_args", "gradient_accumulation_steps"): _COUNT,
    ("trainer_args", "learning_rate"): real(at_least=0),
    ("trainer_args", "max_grad_norm"): real(at_least=0),
    ("trainer_args", "weight_decay"): real(at_least=0),
}


def validate_internal_config(config: InternalModelConfig | None) -> None:
    """Check what a script wrote as `_internal_config`.

    A key of a section that is not known is passed on, with a warning that names the nearest known one: the libraries
    behind the sections have more options than are listed here.

    Raises:
        ConfigurationError: A top-level or serving key is unknown, a type or value is wrong, or settings contradict.
        NotImplementedError: A backend or mode of other releases is asked for.
    """
    if not isinstance(config, Mapping | None):
        raise ConfigurationError(
            f"{_WHERE} must be a dictionary, such as art.dev.InternalModelConfig(…), got {config!r}"
        )
    given: dict[str, Any] = dict(config or {})
    for key in _OF_OLDER_RELEASES & given.keys():
        logger.warning("%s[%r] has no effect: trainer and server are apart in every mode", _WHERE, key)
        del given[key]
    refuse_unknown_keys(_WHERE, given, InternalModelConfig.__annotations__)
    for key in ("tinker_args", "tinker_native_args"):
        if given.get(key) is not None:
            raise NotImplementedError(f"{_WHERE}[{key!r}]: this package has no such backend; leave the key out")
    _check_types(
        _WHERE,
        InternalModelConfig,
        {key: given[key] for key in given if key not in {*_SECTIONS, "serving"}},
    )
    for key, section_type in _SECTIONS.items():
        _check_section_types(key, section_type, given.get(key))
    for (section, key), check in _RANGES.items():
        values = given.get(section) or {}
        if key in values:
            check(f"{_WHERE}[{section!r}][{key!r}]", values[key])
    if given.get("rollout_weights_mode") == "merged":
        raise NotImplementedError(
            f"{_WHERE}['rollout_weights_mode'] is 'merged': only 'lora' is there, rollouts use the adapter itself"
        )
    _check_serving(given)
    _check_contradictions(given)


def validate_server_config(config: OpenAIServerConfig | None) -> None:
    """Check what a script gave to `register` about the inference server.

    A key of a section that is not known is passed on, with a warning, as in `validate_internal_config`.

    Raises:
        ConfigurationError: A top-level key is unknown, or a type or value is wrong.
    """
    where = "_openai_client_config"
    if not isinstance(config, Mapping | None):
        raise ConfigurationError(f"{where} must be a dictionary, got {config!r}")
    given: dict[str, Any] = dict(config or {})
    refuse_unknown_keys(where, given, OpenAIServerConfig.__annotations__)
    for key, section_type in (("server_args", ServerArgs), ("engine_args", EngineArgs)):
        _check_section_types(key, section_type, given.get(key), where)
    port = (given.get("server_args") or {}).get("port")
    whole(at_least=0, at_most=65535)(f"{where}['server_args']['port']", 0 if port is None else port)


def is_dedicated_mode(config: InternalModelConfig) -> bool:
    """Tell whether trainer and inference have GPUs of their own: both id lists are given."""
    return "trainer_gpu_ids" in config and "inference_gpu_ids" in config


def validate_dedicated_config(config: InternalModelConfig) -> None:
    """Check the settings of dedicated mode; without GPU ids there is nothing to check.

    Raises:
        ConfigurationError: The GPU ids, or a setting that dedicated mode excludes.
    """
    if "trainer_gpu_ids" not in config and "inference_gpu_ids" not in config:
        if (config.get("serving") or {}).get("share_gpu"):
            raise ConfigurationError(
                "serving['share_gpu'] is on without trainer_gpu_ids and inference_gpu_ids: in shared mode trainer and "
                "engine always take turns on the same GPU, leave it out"
            )
        return
    if not is_dedicated_mode(config):
        here, missing = "trainer_gpu_ids", "inference_gpu_ids"
        if here not in config:
            here, missing = missing, here
        raise ConfigurationError(
            f"{here} is given and {missing} is not: dedicated mode needs both, shared mode neither"
        )
    trainer, inference = (
        list(config["trainer_gpu_ids"]),
        list(config["inference_gpu_ids"]),
    )
    for key, ids in (("trainer_gpu_ids", trainer), ("inference_gpu_ids", inference)):
        if not ids:
            raise ConfigurationError(f"{key} is empty: name at least one GPU")
    shared, may_share = sorted(set(trainer) & set(inference)), bool((config.get("serving") or {}).get("share_gpu"))
    if shared and not may_share:
        raise ConfigurationError(
            f"trainer_gpu_ids {trainer} and inference_gpu_ids {inference} share GPU {shared}: set "
            "serving['share_gpu'] if that is meant"
        )
    if may_share and not shared:
        raise ConfigurationError(
            f"serving['share_gpu'] is on, but trainer_gpu_ids {trainer} and inference_gpu_ids {inference} share no GPU"
        )
    if len(inference) > 1:
        raise ConfigurationError(
            f"inference_gpu_ids is {inference}: inference on several GPUs is not supported, name one"
        )
    if trainer[0] != 0:
        raise ConfigurationError(f"trainer_gpu_ids is {trainer}: it must start with GPU 0")
    if trainer != list(range(len(trainer))):
        raise ConfigurationError(f"trainer_gpu_ids is {trainer}: it must be {list(range(len(trainer)))}, in that order")
    if config.get("init_args", {}).get("fast_inference"):
        raise ConfigurationError("init_args['fast_inference'] is on: dedicated mode has its engine outside the trainer")
    if config.get("engine_args", {}).get("enable_sleep_mode"):
        raise ConfigurationError("engine_args['enable_sleep_mode'] is on: in dedicated mode the engine never sleeps")


def validate_gpu_ids(config: InternalModelConfig, visible_gpu_count: int) -> None:
    """Check that the GPUs of dedicated mode exist on this machine.

    Args:
        config: A configuration that passed `validate_dedicated_config`.
        visible_gpu_count: How many GPUs this process sees.

    Raises:
        ConfigurationError: An id is negative or too high.
    """
    trainer, inference = config.get("trainer_gpu_ids", []), config.get("inference_gpu_ids", [])
    for key, ids in (("trainer_gpu_ids", trainer), ("inference_gpu_ids", inference)):
        if absent := [gpu for gpu in ids if not 0 <= gpu < visible_gpu_count]:
            raise ConfigurationError(
                f"{key} is {ids}, but GPU {absent} is not on this machine: {visible_gpu_count} GPUs are visible "
                "(CUDA_VISIBLE_DEVICES limits and renumbers them)"
            )


def _check_section_types(key: str, section_type: Any, section: object, parent: str = _WHERE) -> None:
    if section is None:
        return
    where = f"{parent}[{key!r}]"
    if not isinstance(section, Mapping):
        raise ConfigurationError(f"{where} is {section!r}: it must be a dictionary")
    known = section_type.__annotations__
    for unknown in [name for name in section if name not in known]:
        match = nearest(unknown, known)
        hint = f"; did you mean {match!r}?" if match else ""
        logger.warning(
            "%s has a key that is not known here, passed on as it is: %r%s",
            where,
            unknown,
            hint,
        )
    _check_types(where, section_type, section)


def _check_types(where: str, section_type: Any, section: Mapping[str, Any]) -> None:
    try:
        _model_of(section_type).model_validate({key: _plain(value) for key, value in section.items()})
    except ValidationError as err:
        problems = [_describe(where, section, problem["loc"], problem["msg"]) for problem in err.errors()]
        raise ConfigurationError("; ".join(problems)) from None


@cache
def _model_of(section_type: Any) -> type[BaseModel]:
    """Make a model that checks the types of a typed dictionary strictly, and no key's presence."""
    hints = get_type_hints(section_type)
    fields: dict[str, Any] = {key: (hint, None) for key, hint in hints.items() if key not in _CHECKED_APART}
    config = ConfigDict(
        strict=True,
        extra="allow",
        protected_namespaces=(),
        arbitrary_types_allowed=True,
    )
    return create_model(section_type.__name__, __config__=config, **fields)


def _plain(value: Any) -> Any:
    """Give tuples and paths the type that a strict check looks for."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, PurePath) else value


def _describe(where: str, section: Mapping[str, Any], loc: tuple[int | str, ...], message: str) -> str:
    key = str(loc[0])
    shown = "<hidden>" if key in _SECRETS else reprlib.repr(section[key])
    return f"{where}[{key!r}] is {shown}: {message[:1].lower()}{message[1:]}"


def _check_serving(given: Mapping[str, Any]) -> None:
    serving = given.get("serving")
    if serving is not None and not isinstance(serving, Mapping):
        raise ConfigurationError(f"{_WHERE}['serving'] is {serving!r}: it must be a dictionary")
    settings = resolve_serving_settings(serving, dedicated="trainer_gpu_ids" in given)  # type: ignore[arg-type]
    engine = given.get("engine_args") or {}
    max_loras, max_cpu_loras = engine.get("max_loras"), engine.get("max_cpu_loras")
    if max_cpu_loras is None:
        return
    if max_loras is not None and max_cpu_loras < max_loras:
        raise ConfigurationError(f"engine_args['max_cpu_loras'] is {max_cpu_loras}, below max_loras {max_loras}")
    if max_cpu_loras <= settings.max_live_adapters:
        raise ConfigurationError(
            f"engine_args['max_cpu_loras'] is {max_cpu_loras}: it must be above serving['max_live_adapters'], which is "
            f"{settings.max_live_adapters}, since a new adapter is loaded before the oldest one goes"
        )


def _check_contradictions(given: Mapping[str, Any]) -> None:
    init, engine, trainer = (given.get(key) or {} for key in ("init_args", "engine_args", "trainer_args"))
    if given.get("chat_template") is not None and given.get("chat_template_path") is not None:
        raise ConfigurationError("chat_template and chat_template_path are both given: give one of them")
    if (widths := [key for key in ("load_in_4bit", "load_in_8bit", "load_in_16bit") if init.get(key)])[1:]:
        raise ConfigurationError(f"init_args sets {' and '.join(widths)}: set one of them")
    if init.get("full_finetuning"):
        raise ConfigurationError("init_args['full_finetuning'] is on: this package trains LoRA adapters, leave it out")
    if trainer.get("bf16") and trainer.get("fp16"):
        raise ConfigurationError("trainer_args sets bf16 and fp16: set one of them")
    if engine.get("enable_lora") is False:
        raise ConfigurationError("engine_args['enable_lora'] is off: trained adapters could not be served")
    size = engine.get("tensor_parallel_size", 1) * engine.get("pipeline_parallel_size", 1)
    if "inference_gpu_ids" in given and len(given["inference_gpu_ids"]) == 1 and size > 1:
        raise ConfigurationError(
            f"engine_args asks for {size} GPUs (tensor_parallel_size * pipeline_parallel_size), but inference_gpu_ids "
            f"is {given['inference_gpu_ids']}"
        )
