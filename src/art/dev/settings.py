"""Every setting, complete and frozen, with its default: the one place a default is written.

The typed dictionaries beside this file are what scripts write, in part; the resolving functions turn them into these
once, at the top. Below that point nobody looks a key up. Not for validation: that is done while resolving.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from art import env

ContentFormat = Literal["auto", "string", "openai"]
ImportanceSamplingLevel = Literal["token", "sequence", "average", "geometric_average"]
PauseMode = Literal["keep", "wait"]
ToolSchemaFormat = Literal["default", "vllm_openai"]

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


@dataclass(frozen=True)
class SFTSettings:
    """Everything that one call of supervised fine-tuning is told, resolved by `art.dev.train.resolve_sft_settings`.

    Attributes:
        learning_rate: One rate for every batch, or the rate of each batch in order.
        batch_size: Trajectories to a batch.
    """

    learning_rate: float | tuple[float, ...] = 5e-5
    batch_size: int = 2


@dataclass(frozen=True)
class ServingSettings:
    """How the inference server is started, watched, updated and restarted, resolved by `resolve_serving_settings`.

    Attributes:
        inference_restarts: How often the server may be restarted within `restart_window_s`; 0: never.
        restart_window_s: Length of the window in which restarts are counted, in seconds.
        adapter_reload_timeout_s: How long loading an adapter may take, retries included.
        server_start_timeout_s: How long the server may take until it lists the newest adapter.
        health_interval_s: Time between two health checks.
        health_timeout_s: How long the one-token completion of a health check may take.
        max_logprob_gap: Mean absolute difference, in nats, between server and trainer that a published adapter may
            show; None: the publisher chooses by computation type.
        pause_timeout_s: How long running requests may take to finish before training starts.
        pause_mode: "wait": running requests finish first; "keep": they are held and go on afterwards; None: chosen
            by device.
        max_live_adapters: Steps that stay addressable at once, the newest included. The engine's `max_cpu_loras`
            must be greater, since a new adapter is loaded before the oldest one goes.
        rollout_wait_s: How long a rollout's request waits out a reload or a restart before it fails.
        save_optimizer: Save the optimiser's state with the newest checkpoint, so that a resumed run goes on smoothly.
        share_gpu: In dedicated mode, trainer and server may be on the same GPU: the server takes its share of the
            memory (`engine_args["gpu_memory_utilization"]`), the trainer keeps to the rest.
    """

    inference_restarts: int = 2
    restart_window_s: float = 600.0
    adapter_reload_timeout_s: float = env.ADAPTER_RELOAD_TIMEOUT_S.default
    server_start_timeout_s: float = env.SERVER_TIMEOUT_S.default
    health_interval_s: float = 30.0
    health_timeout_s: float = env.HEALTH_TIMEOUT_S.default
    max_logprob_gap: float | None = None
    pause_timeout_s: float = 300.0
    pause_mode: PauseMode | None = None
    max_live_adapters: int = 4
    rollout_wait_s: float = 600.0
    save_optimizer: bool = True
    share_gpu: bool = False


@dataclass(frozen=True)
class ChatTemplateSettings:
    """How conversations become text, at inference and in training alike.

    Attributes:
        template: The Jinja template; None: the tokenizer's own.
        kwargs: Variables for the template, such as `{"enable_thinking": False}`. Not to be changed.
        content_format: Shape of a message's content in the template: "auto", "string" or "openai".
        tool_schema_format: "default": tools as the caller gave them, in OpenAI form; "vllm_openai": as vLLM's own
            models dump them.
    """

    template: str | None = None
    kwargs: Mapping[str, object] = field(default_factory=dict)
    content_format: ContentFormat = "auto"
    tool_schema_format: ToolSchemaFormat = "default"


# Sections of the model's configuration, completed by `art.dev.get_model_config.get_model_config` ---------------

INIT_DEFAULTS: Mapping[str, Any] = {"load_in_4bit": True, "max_seq_length": 32768}

ENGINE_DEFAULTS: Mapping[str, Any] = {
    "allowed_local_media_path": "/tmp",
    "generation_config": "vllm",
}

PEFT_DEFAULTS: Mapping[str, Any] = {
    "lora_alpha": 16,
    "r": 8,
    "random_state": 3407,
    "target_modules": (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    ),
    "use_gradient_checkpointing": "unsloth",
}

TRAINER_DEFAULTS: Mapping[str, Any] = {
    "adam_beta1": 0.9,
    "adam_beta2": 0.99,
    "disable_tqdm": True,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing": True,
    "learning_rate": 5e-6,
    "logging_steps": 1,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.1,
    "num_generations": 2,
    "optim": "paged_adamw_8bit",
    "per_device_train_batch_size": 2,
    "report_to": "none",
    "save_strategy": "no",
    "weight_decay": 0.1,
}

# Of supervised fine-tuning, where the caller's trainer_args say nothing.
SFT_TRAINER_DEFAULTS: Mapping[str, Any] = {"max_grad_norm": 1.0, "weight_decay": 0.01}

SERVER_DEFAULTS: Mapping[str, Any] = {
    "api_key": "default",
    "return_tokens_as_token_ids": True,
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
}

# Where trainer and server share a GPU at the same time: of its memory, what the server takes unless it is told, and
# what neither may take.
SHARED_GPU_UTILIZATION = 0.45
SHARED_GPU_RESERVE = 0.05

# On a machine without CUDA ------------------------------------------------------------------------------------

CPU_DTYPE = "float32"
CPU_OPTIMIZER = "adamw_torch"
# One process fewer and no busy waiting: ten times as fast on two cores. vLLM turns "uni" into "mp" on a CPU, but takes
# the class by its path. Without a size for the cache the engine wants nearly all memory of the machine. With blocks
# of 128 tokens, vLLM's own choice on a CPU, short prompts never meet in the prefix cache, and each of a group's
# answers pays for the prompt again: 96 answers to short prompts took ten times as long.
CPU_ENGINE_DEFAULTS: Mapping[str, Any] = {
    "block_size": 32,
    "distributed_executor_backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 1 << 30,
}

# vLLM takes no other rank than these; a smaller adapter fits into the next one.
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
ENGINE_DEFAULT_LORA_RANK = 16
