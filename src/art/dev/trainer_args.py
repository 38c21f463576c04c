"""The trainer's arguments, as scripts write them. Keys and types only: defaults are in `settings.py`."""

from __future__ import annotations

from typing import Any, TypedDict

from art.dev.enums import (
    DebugOption,
    FSDPOption,
    HubStrategy,
    IntervalStrategy,
    OptimizerNames,
    SaveStrategy,
    SchedulerType,
)


class TrainerArgs(TypedDict, total=False):
    """Optimiser and trainer arguments, named as in transformers' TrainingArguments and TRL's GRPOConfig.

    All of them are accepted; the trainer uses those that make sense for packed reinforcement learning.
    """

    accelerator_config: dict[str, Any] | str | None
    adafactor: bool
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    auto_find_batch_size: bool
    average_tokens_across_devices: bool | None
    batch_eval_metrics: bool
    beta: float
    bf16: bool
    bf16_full_eval: bool
    data_seed: int | None
    dataloader_drop_last: bool
    dataloader_num_workers: int
    dataloader_persistent_workers: bool
    dataloader_pin_memory: bool
    dataloader_prefetch_factor: int | None
    ddp_backend: str | None
    ddp_broadcast_buffers: bool | None
    ddp_bucket_cap_mb: int | None
    ddp_find_unused_parameters: bool | None
    ddp_timeout: int
    debug: str | list[DebugOption]
    deepspeed: dict[str, Any] | str | None
    disable_tqdm: bool | None
    do_eval: bool
    do_predict: bool
    do_train: bool
    ds3_gather_for_generation: bool
    eval_accumulation_steps: int | None
    eval_delay: float | None
    eval_do_concat_batches: bool
    eval_on_start: bool
    eval_steps: float | None
    eval_strategy: IntervalStrategy | str
    eval_use_gather_object: bool | None
    fp16: bool
    fp16_backend: str
    fp16_full_eval: bool
    fp16_opt_level: str
    fsdp: list[FSDPOption] | str | None
    fsdp_config: dict[str, Any] | str | None
    fsdp_min_num_params: int
    fsdp_transformer_layer_cls_to_wrap: str | None
    full_determinism: bool
    gradient_accumulation_steps: int
    gradient_checkpointing: bool
    gradient_checkpointing_kwargs: dict[str, Any] | str | None
    greater_is_better: bool | None
    group_by_length: bool
    half_precision_backend: str
    hub_always_push: bool
    hub_model_id: str | None
    hub_private_repo: bool | None
    hub_strategy: HubStrategy | str
    hub_token: str | None
    ignore_data_skip: bool
    include_for_metrics: list[str]
    include_inputs_for_metrics: bool
    include_num_input_tokens_seen: bool | None
    include_tokens_per_second: bool | None
    jit_mode_eval: bool
    label_names: list[str] | None
    label_smoothing_factor: float
    learning_rate: float
    length_column_name: str | None
    load_best_model_at_end: bool | None
    local_rank: int
    log_completions: bool
    log_level: str
    log_level_replica: str
    log_on_each_node: bool
    logging_dir: str | None
    logging_first_step: bool
    logging_nan_inf_filter: bool
    logging_steps: float
    logging_strategy: IntervalStrategy | str
    lr_scheduler_kwargs: dict[str, Any] | str | None
    lr_scheduler_type: SchedulerType | str
    max_completion_length: int | None
    max_grad_norm: float
    max_prompt_length: int | None
    max_steps: int
    metric_for_best_model: str | None
    model_init_kwargs: dict[str, Any] | None
    mp_parameters: str
    neftune_noise_alpha: float | None
    no_cuda: bool
    num_generations: int | None
    num_train_epochs: float
    optim: OptimizerNames | str
    optim_args: str | None
    optim_target_modules: str | list[str] | None
    output_dir: str | None
    overwrite_output_dir: bool
    past_index: int
    per_device_eval_batch_size: int
    per_device_train_batch_size: int
    per_gpu_eval_batch_size: int | None
    per_gpu_train_batch_size: int | None
    prediction_loss_only: bool
    push_to_hub: bool
    push_to_hub_model_id: str | None
    push_to_hub_organization: str | None
    push_to_hub_token: str | None
    ray_scope: str | None
    ref_model_mixup_alpha: float
    ref_model_sync_steps: int
    remove_unused_columns: bool | None
    report_to: str | list[str] | None
    restore_callback_states_from_checkpoint: bool
    resume_from_checkpoint: str | None
    reward_weights: list[float] | None
    run_name: str | None
    save_on_each_node: bool
    save_only_model: bool
    save_safetensors: bool | None
    save_steps: float
    save_strategy: SaveStrategy | str
    save_total_limit: int | None
    seed: int
    skip_memory_metrics: bool
    sync_ref_model: bool
    temperature: float
    tf32: bool | None
    torch_compile: bool
    torch_compile_backend: str | None
    torch_compile_mode: str | None
    torch_empty_cache_steps: int | None
    torchdynamo: str | None
    tpu_metrics_debug: bool
    tpu_num_cores: int | None
    use_cpu: bool
    use_ipex: bool
    use_legacy_prediction_loop: bool
    use_liger_kernel: bool | None
    use_mps_device: bool
    warmup_ratio: float
    warmup_steps: int
    weight_decay: float
