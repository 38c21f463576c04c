"""Load the base model and put the adapter on it: with Unsloth on a GPU, with transformers and PEFT elsewhere.

Without an accelerator Unsloth itself loads plain transformers and PEFT models, and changes trainer classes of the whole
process besides; so it is used where it brings its kernels. Nothing here trains.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from art import env
from art.dev.model import InternalModelConfig
from art.errors import ConfigurationError, IncompatibleDependencyError, MissingDependencyError
from art.unsloth.attention_mask import MaskForm
from art.unsloth.block_attention import use_in_transformers, use_in_unsloth
from art.unsloth.language_model import LanguageModel
from art.unsloth.load_adapter import CHANGES_BASE, load_adapter_weights, read_adapter_config
from art.unsloth.logprobs import OutputHead
from art.unsloth.patches import keep_attention_mask

logger = logging.getLogger(__name__)

Loader = Literal["unsloth", "transformers"]

_LORA_KEYS = (
    "r",
    "target_modules",
    "lora_alpha",
    "lora_dropout",
    "bias",
    "layers_to_transform",
    "layers_pattern",
    "use_rslora",
    "init_lora_weights",
    "loftq_config",
)
_LOADED_INIT_KEYS = frozenset(
    {
        "model_name",
        "max_seq_length",
        "dtype",
        "load_in_4bit",
        "load_in_8bit",
        "token",
        "device_map",
        "rope_scaling",
        "trust_remote_code",
        "revision",
        "use_gradient_checkpointing",
        "random_state",
    }
)


def build_model(
    base_model: str, config: InternalModelConfig, adapter_dir: Path | None, *, loader: Loader | None = None
) -> LanguageModel:
    """Load the base model for training an adapter.

    Args:
        base_model: Hub id or path of the base model.
        config: The model's configuration, complete.
        adapter_dir: Checkpoint whose adapter to go on with; None for a fresh adapter, whose B matrices are 0 and whose
            A matrices depend on `peft_args["random_state"]` alone.
        loader: Which library loads; None: Unsloth on a GPU where it is installed, otherwise transformers.

    Raises:
        ConfigurationError: A setting asks for what an adapter cannot be, or does not fit the model.
        MissingDependencyError: A package is absent.
        CheckpointIncompleteError: The adapter's files do not fit together.
    """
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    init_args: dict[str, Any] = dict(config["init_args"])
    init_args["model_name"] = base_model
    init_args["dtype"] = compute_dtype(init_args.get("dtype"), device)
    peft_args: dict[str, Any] = dict(config["peft_args"])
    _refuse_unservable(init_args, peft_args)
    lora_args = {key: peft_args[key] for key in _LORA_KEYS if peft_args.get(key) is not None}
    if adapter_dir is not None:
        lora_args = _prefer_saved(read_adapter_config(adapter_dir), lora_args)
    loader = loader or _choose_loader(device)
    _log_ignored(init_args, loader)
    with _own_randomness(device, int(peft_args.get("random_state", 3407))), _told_about_target_modules(lora_args):
        if loader == "unsloth":
            peft_model = _load_with_unsloth(init_args, peft_args, lora_args, device)
        else:
            peft_model = _load_with_transformers(init_args, lora_args, device)
    if adapter_dir is not None:
        load_adapter_weights(peft_model, adapter_dir)
    causal_lm = peft_model.get_base_model()
    backbone = causal_lm.base_model
    is_fast = loader == "unsloth" and device.type == "cuda"
    if is_fast:
        keep_attention_mask(backbone)
    return LanguageModel(
        peft_model=peft_model,
        causal_lm=causal_lm,
        backbone=backbone,
        head=OutputHead.of(causal_lm),
        device=device,
        dtype=init_args["dtype"],
        may_checkpoint=bool(config["trainer_args"].get("gradient_checkpointing", True)),
        is_quantized=bool(init_args.get("load_in_4bit") or init_args.get("load_in_8bit")),
        is_fast=is_fast,
        mask_form=_prepare_masks(causal_lm, backbone, is_fast=is_fast) if device.type == "cuda" else "dense",
    )


def _prepare_masks(causal_lm: Any, backbone: Any, *, is_fast: bool) -> MaskForm:
    """Have the model attend by blocks if its attention can be replaced; `self_check` finds out whether it works."""
    config = causal_lm.config.get_text_config()
    if is_fast:
        layers = getattr(backbone, "layers", None)
        if not layers or getattr(config, "sliding_window", None) or not hasattr(layers[0], "self_attn"):
            return "dense"
        try:
            use_in_unsloth(layers[0].self_attn)
        except IncompatibleDependencyError as err:
            logger.info("attention with dense masks: %s", err)
            return "dense"
        return "blocks"
    has_images = hasattr(causal_lm.config, "vision_config")
    is_plain = causal_lm.config._attn_implementation == "sdpa" and not getattr(config, "attention_dropout", 0.0)
    if has_images or not is_plain:
        return "dense"
    use_in_transformers(causal_lm)
    return "blocks"


def compute_dtype(wanted: object, device: torch.device) -> torch.dtype:
    """Return the type to compute in.

    Args:
        wanted: A name such as "bfloat16", "auto", a torch type, or None to choose: float32 on a CPU; on a GPU what
            `ACCELERATE_MIXED_PRECISION` says, otherwise bfloat16 where the GPU has it, otherwise float16.
        device: Where the model will be.

    Raises:
        ConfigurationError: It is not a floating-point type.
    """
    if isinstance(wanted, torch.dtype):
        return wanted
    if wanted not in (None, "auto"):
        named = getattr(torch, str(wanted).removeprefix("torch."), None)
        if not isinstance(named, torch.dtype) or not named.is_floating_point:
            raise ConfigurationError(f"init_args['dtype'] is {wanted!r}; use 'float32', 'bfloat16' or 'float16'")
        return named
    if device.type == "cpu" or env.UNSLOTH_FORCE_FLOAT32.read():
        return torch.float32
    precision = env.ACCELERATE_MIXED_PRECISION.read() or ("bf16" if torch.cuda.is_bf16_supported() else "fp16")
    return torch.bfloat16 if precision == "bf16" else torch.float16


def _choose_loader(device: torch.device) -> Loader:
    if device.type == "cpu":
        return "transformers"
    if importlib.util.find_spec("unsloth") is None:
        logger.warning("unsloth is not installed: training with plain transformers and PEFT, which is slower")
        return "transformers"
    return "unsloth"


def _refuse_unservable(init_args: Mapping[str, Any], peft_args: Mapping[str, Any]) -> None:
    if init_args.get("full_finetuning"):
        raise ConfigurationError("init_args['full_finetuning'] is set, but only adapters are trained and served")
    if peft_args.get("modules_to_save"):
        raise ConfigurationError("peft_args['modules_to_save'] cannot be served: vLLM applies low-rank updates only")
    if peft_args.get("bias", "none") != "none":
        raise ConfigurationError(f"peft_args['bias'] is {peft_args['bias']!r}, but vLLM does not serve trained biases")
    start = peft_args.get("init_lora_weights")
    if str(start).startswith(CHANGES_BASE):
        raise ConfigurationError(
            f"peft_args['init_lora_weights'] is {start!r}: it changes the base model, and vLLM's stays as it is"
        )


def _prefer_saved(saved: Mapping[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the LoRA arguments of a saved adapter, and say where the configuration asks for others."""
    merged = wanted | {key: saved[key] for key in _LORA_KEYS if saved.get(key) is not None}
    for key in ("r", "lora_alpha", "target_modules"):
        if key in wanted and _comparable(wanted[key]) != _comparable(merged[key]):
            logger.warning(
                "the checkpoint's adapter has %s=%s; peft_args asks for %s, which only a new model can have",
                key,
                merged[key],
                wanted[key],
            )
    merged.pop("loftq_config", None)
    return merged


def _comparable(value: object) -> object:
    return sorted(value) if isinstance(value, list | tuple | set) else value


def _log_ignored(init_args: Mapping[str, Any], loader: Loader) -> None:
    ignored = sorted(key for key, value in init_args.items() if value and key not in _LOADED_INIT_KEYS)
    if loader == "transformers" and init_args.get("use_gradient_checkpointing"):
        ignored.append("use_gradient_checkpointing")
    if ignored:
        logger.info("init_args without effect on the trainer (%s): %s", loader, ", ".join(ignored))


@contextmanager
def _own_randomness(device: torch.device, seed: int) -> Iterator[None]:
    """Seed torch for the adapter's first weights, and leave its global generators as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def _told_about_target_modules(lora_args: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except ValueError as err:
        if "target modules" not in str(err).lower():
            raise
        raise ConfigurationError(f"peft_args['target_modules'] {lora_args.get('target_modules')}: {err}") from err


def _load_with_transformers(init_args: Mapping[str, Any], lora_args: Mapping[str, Any], device: torch.device) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    except ImportError as err:
        raise MissingDependencyError(err.name or "transformers", needed_for="training", extra="train") from err

    origin = {key: init_args.get(key) for key in ("token", "revision")}
    origin["trust_remote_code"] = bool(init_args.get("trust_remote_code"))
    model_config = AutoConfig.from_pretrained(init_args["model_name"], **origin)
    text_config = model_config.get_text_config()
    if init_args.get("rope_scaling"):
        text_config.rope_parameters = {**(text_config.rope_parameters or {}), **init_args["rope_scaling"]}
    arguments: dict[str, Any] = {"config": model_config, "dtype": init_args["dtype"], **origin}
    if getattr(text_config, "attn_logit_softcapping", None):
        arguments["attn_implementation"] = "eager"  # the others leave the soft cap out
    if init_args.get("load_in_4bit") or init_args.get("load_in_8bit"):
        arguments["quantization_config"] = _quantization(init_args)
    if device.type == "cuda" or init_args.get("device_map"):
        arguments["device_map"] = init_args.get("device_map") or {"": device}
    has_images = hasattr(model_config, "vision_config")
    auto_class = AutoModelForImageTextToText if has_images else AutoModelForCausalLM
    model = auto_class.from_pretrained(init_args["model_name"], **arguments)
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora_args))


def _quantization(init_args: Mapping[str, Any]) -> Any:
    from transformers import BitsAndBytesConfig

    in_4bit = bool(init_args.get("load_in_4bit"))
    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=in_4bit,
        load_in_8bit=not in_4bit,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=init_args["dtype"],
    )


def _load_with_unsloth(
    init_args: Mapping[str, Any], peft_args: Mapping[str, Any], lora_args: Mapping[str, Any], device: torch.device
) -> Any:
    try:
        from unsloth import FastLanguageModel
    except ImportError as err:
        raise MissingDependencyError("unsloth", needed_for="training", extra="train") from err

    on_gpu = device.type == "cuda"
    checkpointing = peft_args.get("use_gradient_checkpointing", "unsloth") if on_gpu else False
    wanted = (
        "model_name",
        "max_seq_length",
        "dtype",
        "load_in_4bit",
        "load_in_8bit",
        "token",
        "device_map",
        "revision",
    )
    arguments = {key: init_args[key] for key in (*wanted, "rope_scaling") if init_args.get(key) is not None}
    if not init_args.get("rope_scaling"):
        _keep_positions(arguments, trust_remote_code=bool(init_args.get("trust_remote_code")))
    model, _ = FastLanguageModel.from_pretrained(
        **arguments,
        fast_inference=False,
        trust_remote_code=bool(init_args.get("trust_remote_code")),
        use_gradient_checkpointing=checkpointing,
    )
    return FastLanguageModel.get_peft_model(
        model,
        **{**lora_args, "target_modules": _as_list(lora_args["target_modules"])},
        use_gradient_checkpointing=checkpointing,
        random_state=int(peft_args.get("random_state", 3407)),
    )


def _keep_positions(arguments: dict[str, Any], *, trust_remote_code: bool) -> None:
    """Ask for no more positions than the model has: Unsloth would stretch them, and the engine does not.

    Rows may be longer: positions are counted within a conversation, and those are no longer than the engine takes.
    """
    from transformers import AutoConfig

    origin = {key: arguments.get(key) for key in ("token", "revision")}
    config = AutoConfig.from_pretrained(arguments["model_name"], trust_remote_code=trust_remote_code, **origin)
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    if limit and arguments.get("max_seq_length"):
        arguments["max_seq_length"] = min(int(arguments["max_seq_length"]), int(limit))


def _as_list(target_modules: Any) -> Any:
    return target_modules if isinstance(target_modules, str) else sorted(target_modules)
