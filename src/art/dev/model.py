"""The model's configuration, as scripts write it. Keys and types only: defaults are in `settings.py`.

What is checked, and what happens to a key that does not exist, is in `validate.py`.
"""

from __future__ import annotations

from typing import Any, Literal, Required, TypedDict

from art.dev.engine import EngineArgs
from art.dev.enums import (
    DebugOption,
    FSDPOption,
    HubStrategy,
    IntervalStrategy,
    OptimizerNames,
    SaveStrategy,
    SchedulerType,
)
from art.dev.serving import ServingArgs
from art.dev.trainer_args import TrainerArgs

__all__ = [
    "DebugOption",
    "FSDPOption",
    "HubStrategy",
    "InitArgs",
    "InternalModelConfig",
    "IntervalStrategy",
    "OptimizerNames",
    "PeftArgs",
    "RolloutWeightsMode",
    "SaveStrategy",
    "SchedulerType",
    "TinkerArgs",
    "TinkerNativeArgs",
    "TinkerTrainingClientArgs",
    "TrainerArgs",
]

RolloutWeightsMode = Literal["lora", "merged"]


class InitArgs(TypedDict, total=False):
    """How the base model is loaded for training.

    `dtype` may be a name or a `torch.dtype`. `fast_inference` has no effect: the engine is never inside the trainer.
    """

    device_map: str | dict[str, Any] | None
    disable_log_stats: bool
    dtype: object
    enable_prefix_caching: bool
    fast_inference: bool
    fix_tokenizer: bool
    float8_kv_cache: bool
    full_finetuning: bool
    gpu_memory_utilization: float
    load_in_16bit: bool
    load_in_4bit: bool
    load_in_8bit: bool
    max_lora_rank: int
    max_seq_length: int
    model_name: str
    random_state: int
    resize_model_vocab: int | None
    revision: str | None
    rope_scaling: dict[str, Any] | None
    token: str | bool | None
    trust_remote_code: bool
    use_async: bool
    use_exact_model_name: bool
    use_gradient_checkpointing: str | bool


class PeftArgs(TypedDict, total=False):
    """The LoRA adapter."""

    bias: str
    init_lora_weights: bool | str
    layers_pattern: str | list[str] | None
    layers_to_transform: int | list[int] | None
    loftq_config: dict[str, Any] | None
    lora_alpha: float
    lora_dropout: float
    max_seq_length: int
    modules_to_save: list[str] | None
    r: int
    random_state: int
    target_modules: list[str] | str
    temporary_location: str
    use_gradient_checkpointing: str | bool
    use_rslora: bool


class TinkerTrainingClientArgs(TypedDict, total=False):
    """Part of a backend that this package does not have."""

    rank: int
    seed: int | None
    train_attn: bool
    train_mlp: bool
    train_unembed: bool
    user_metadata: dict[str, str] | None


class TinkerArgs(TypedDict, total=False):
    """Part of a backend that this package does not have."""

    renderer_name: Required[str]
    training_client_args: TinkerTrainingClientArgs


class TinkerNativeArgs(TypedDict, total=False):
    """Part of a backend that this package does not have."""

    renderer_name: Required[str]
    training_client_args: TinkerTrainingClientArgs


class InternalModelConfig(TypedDict, total=False):
    """Everything about a model's training and serving; the `_internal_config` of a trainable model.

    `trainer_gpu_ids` and `inference_gpu_ids`, given together, ask for dedicated mode. The `chat_template*` keys hold
    for inference and training alike; at most one of `chat_template` and `chat_template_path` may be given.
    """

    allow_unvalidated_arch: bool
    chat_template: str | None
    chat_template_content_format: Literal["auto", "string", "openai"]
    chat_template_kwargs: dict[str, object] | None
    chat_template_path: str | None
    chat_template_tool_schema_format: Literal["default", "vllm_openai"]
    engine_args: EngineArgs
    inference_gpu_ids: list[int]
    init_args: InitArgs
    peft_args: PeftArgs
    rollout_weights_mode: RolloutWeightsMode
    serving: ServingArgs
    tinker_args: TinkerArgs | None
    tinker_native_args: TinkerNativeArgs | None
    trainer_args: TrainerArgs
    trainer_gpu_ids: list[int]
