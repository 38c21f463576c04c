"""The vLLM engine's arguments, as scripts write them. Keys and types only: defaults are in `settings.py`."""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class EngineArgs(TypedDict, total=False):
    """Arguments of the vLLM engine. All optional; a key that is not listed here goes to vLLM as it is.

    Keys that the installed vLLM no longer has are left out with a warning when its command line is written. `dtype`
    may be a name or a `torch.dtype`.
    """

    additional_config: dict[str, Any] | None
    allowed_local_media_path: str
    block_size: int | None
    calculate_kv_scales: bool | None
    code_revision: str | None
    collect_detailed_traces: str | None
    cpu_offload_gb: float
    device: str
    disable_async_output_proc: bool
    disable_custom_all_reduce: bool
    disable_log_requests: bool
    disable_log_stats: bool
    disable_logprobs_during_spec_decoding: bool | None
    disable_mm_preprocessor_cache: bool
    disable_sliding_window: bool
    download_dir: str | None
    dtype: object
    enable_chunked_prefill: bool | None
    enable_log_requests: bool
    enable_lora: bool
    enable_lora_bias: bool
    enable_prefix_caching: bool | None
    enable_prompt_adapter: bool
    enable_sleep_mode: bool
    enforce_eager: bool | None
    fully_sharded_loras: bool
    generation_config: str | None
    gpu_memory_utilization: float
    guided_decoding_backend: str
    ignore_patterns: str | list[str] | None
    kv_cache_dtype: str
    limit_mm_per_prompt: dict[str, int] | None
    load_format: str
    logits_processor_pattern: str | None
    long_lora_scaling_factors: tuple[float, ...] | list[float] | None
    long_prefill_token_threshold: int | None
    lora_dtype: str | None
    lora_extra_vocab_size: int
    max_cpu_loras: int | None
    max_logprobs: int
    max_long_partial_prefills: int | None
    max_lora_rank: int
    max_loras: int
    max_model_len: int | None
    max_num_batched_tokens: int | None
    max_num_partial_prefills: int | None
    max_num_seqs: int | None
    max_parallel_loading_workers: int | None
    max_prompt_adapter_token: int
    max_prompt_adapters: int
    max_seq_len_to_capture: int
    mm_processor_kwargs: dict[str, Any] | None
    model: str
    model_impl: str
    model_loader_extra_config: dict[str, Any] | None
    multi_step_stream_outputs: bool
    ngram_prompt_lookup_max: int | None
    ngram_prompt_lookup_min: int | None
    num_gpu_blocks_override: int | None
    num_lookahead_slots: int
    num_scheduler_steps: int
    num_speculative_tokens: int | None
    otlp_traces_endpoint: str | None
    override_generation_config: dict[str, Any] | None
    override_neuron_config: dict[str, Any] | None
    pipeline_parallel_size: int
    preemption_mode: str | None
    qlora_adapter_name_or_path: str | None
    quantization: str | None
    ray_workers_use_nsight: bool
    revision: str | None
    rope_scaling: dict[str, Any] | None
    rope_theta: float | None
    scheduler_cls: str | type[object]
    scheduler_delay_factor: float
    scheduling_policy: Literal["fcfs", "priority"]
    seed: int
    served_model_name: str | list[str] | None
    skip_tokenizer_init: bool
    spec_decoding_acceptance_method: str
    speculative_disable_by_batch_size: int | None
    speculative_disable_mqa_scorer: bool | None
    speculative_draft_tensor_parallel_size: int | None
    speculative_max_model_len: int | None
    speculative_model: str | None
    speculative_model_quantization: str | None
    swap_space: float
    tensor_parallel_size: int
    tokenizer: str | None
    tokenizer_mode: str
    tokenizer_pool_extra_config: dict[str, Any] | None
    tokenizer_pool_size: int
    tokenizer_revision: str | None
    trust_remote_code: bool
    typical_acceptance_sampler_posterior_alpha: float | None
    typical_acceptance_sampler_posterior_threshold: float | None
    use_v2_block_manager: bool
    worker_cls: str
    # Newer than release 0.5.17
    async_scheduling: bool | None
    compilation_config: dict[str, Any] | int | None
    distributed_executor_backend: str | type[object] | None
    enable_expert_parallel: bool
    hf_overrides: dict[str, Any] | None
    kv_cache_memory_bytes: int | None
    lora_target_modules: list[str] | None
    speculative_config: dict[str, Any] | None
    weight_transfer_config: dict[str, Any] | None
    worker_extension_cls: str
