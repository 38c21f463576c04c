"""What the keys of the configuration's dictionaries mean, where the code says so in more than one place.

A key of a section that is not here is listed by its name alone, as one that is passed on or has no effect.
`tests/unit/docs` checks these texts against the code.
"""

from __future__ import annotations

MODEL: dict[str, str] = {
    "trainer_gpu_ids": "GPUs of the trainer, counted from 0 without gaps. With `inference_gpu_ids` it asks for "
    "dedicated mode.",
    "inference_gpu_ids": "The GPU of the inference server: one id.",
    "serving": "How the inference server is run, watched and restarted: [below](#serving).",
    "init_args": "How the base model is loaded for training: [below](#init_args).",
    "peft_args": "The LoRA adapter: [below](#peft_args).",
    "trainer_args": "The optimizer: [below](#trainer_args).",
    "engine_args": "vLLM's engine: [below](#engine_args).",
    "chat_template": "Jinja template that replaces the tokenizer's own, for the server and for training.",
    "chat_template_path": "The same, read from a file. Give one of the two at most.",
    "chat_template_kwargs": 'Variables for the template, such as `{"enable_thinking": False}`, for the server and for '
    "training.",
    "chat_template_content_format": "How the server hands a message's content to the template. Left out: "
    "vLLM's own choice.",
    "chat_template_tool_schema_format": "Accepted. Training always renders tools as vLLM's server does.",
    "rollout_weights_mode": 'Only "lora": rollouts use the adapter itself. "merged" raises `NotImplementedError`.',
    "allow_unvalidated_arch": "Accepted, has no effect.",
    "tinker_args": "Of a backend that this package does not have: anything but None raises `NotImplementedError`.",
    "tinker_native_args": "Likewise.",
}

INIT: dict[str, str] = {
    "max_seq_length": "Longest packed row and longest conversation that is trained, in tokens. Longer ones are dropped "
    "and counted.",
    "load_in_4bit": "Train on weights of 4 bits. False loads them in `dtype`.",
    "load_in_8bit": "Train on weights of 8 bits; takes the place of 4 bits.",
    "load_in_16bit": "Takes the place of 4 bits, too.",
    "dtype": "Type to compute in, as a name or a `torch.dtype`. Left out: float32 on a CPU; on a GPU bfloat16 where it "
    "has it, else float16.",
    "token": "Token for the Hub.",
    "revision": "Revision of the base model on the Hub.",
    "trust_remote_code": "Let the model's repository bring its own code.",
    "device_map": "Placement of the weights. Left out: the trainer's GPU.",
    "rope_scaling": "Replaces the model's own scaling of positions.",
    "model_name": "Set by the backend: the base model, or the newest checkpoint.",
    "gpu_memory_utilization": 'Counts as `engine_args["gpu_memory_utilization"]` where that is not given.',
    "fast_inference": "Ignored with a warning in shared mode, refused in dedicated mode: the engine is never inside "
    "the trainer.",
    "full_finetuning": "Refused when on: adapters are trained and served.",
}

PEFT: dict[str, str] = {
    "r": "Rank of the adapter. The engine's `max_lora_rank` is raised to fit.",
    "lora_alpha": "Scale of the adapter: its update counts lora_alpha / r times.",
    "lora_dropout": "Dropout on the adapter's input while training.",
    "target_modules": "Modules that get an adapter.",
    "random_state": "Seed of a fresh adapter, and of the order of rows.",
    "use_gradient_checkpointing": "Unsloth's way to save memory, on a GPU.",
    "use_rslora": "Scale by lora_alpha / sqrt(r) instead.",
    "init_lora_weights": "How PEFT initialises a fresh adapter.",
    "layers_to_transform": "Only these layers get an adapter.",
    "layers_pattern": "Name of the list of layers, for the key above.",
    "loftq_config": "PEFT's LoftQ settings.",
    "bias": 'Only "none": vLLM serves no trained biases.',
    "modules_to_save": "Refused: vLLM applies low-rank updates only.",
}

TRAINER: dict[str, str] = {
    "optim": 'Optimizer: "adamw_torch", "adamw_torch_fused", "adamw", or one of bitsandbytes ("adamw_8bit", '
    '"adamw_bnb_8bit", "paged_adamw", "paged_adamw_32bit", "paged_adamw_8bit"). Without a GPU or bitsandbytes plain '
    "AdamW is used, with a warning.",
    "learning_rate": "No effect of its own: each step sets `TrainConfig.learning_rate`.",
    "adam_beta1": "Decay of the first moment.",
    "adam_beta2": "Decay of the second moment.",
    "adam_epsilon": "Added to the denominator; 1e-8 by default.",
    "weight_decay": "Decay of the weights. Supervised fine-tuning uses 0.01 unless you give it here.",
    "max_grad_norm": "The gradient is clipped to this norm. Supervised fine-tuning uses 1.0 unless you give it here.",
    "gradient_accumulation_steps": "Packed rows to an optimizer step, where `grad_accumulation_sequences` is not "
    "given.",
    "gradient_checkpointing": "Compute activations again in the backward pass where memory asks for it.",
    "output_dir": "Set by the backend: the model's folder.",
}

ENGINE: dict[str, str] = {
    "gpu_memory_utilization": "Share of the GPU's memory that the engine takes. Left out: vLLM's own; 0.45 with "
    '`serving["share_gpu"]`.',
    "max_model_len": "Longest prompt and answer together, in tokens. Left out: the model's own.",
    "dtype": "Type to compute in, as a name or a `torch.dtype`.",
    "enforce_eager": "Do without CUDA graphs. Much slower on a GPU.",
    "max_num_seqs": "Requests that are answered at once.",
    "enable_prefix_caching": "Reuse the beginnings of prompts.",
    "max_lora_rank": 'Highest rank of an adapter; raised to fit `peft_args["r"]`.',
    "max_loras": 'Adapters that one batch may mix. Left out: `serving["max_live_adapters"]` + 1.',
    "max_cpu_loras": 'Adapters that the engine holds. Must be above `serving["max_live_adapters"]`; left out: enough.',
    "enable_sleep_mode": "Whether the engine can give its memory to the trainer. On in shared mode on a GPU, refused "
    "in dedicated mode.",
    "enable_lora": "Always on; False is refused.",
    "tensor_parallel_size": "GPUs that share the model. Dedicated mode has one GPU for the server.",
    "pipeline_parallel_size": "Likewise.",
    "kv_cache_memory_bytes": "Size of the KV cache; takes the place of a share of the memory.",
    "block_size": "Tokens to a block of the KV cache.",
    "distributed_executor_backend": "How vLLM runs its workers.",
    "generation_config": "Where defaults for sampling come from: vLLM's, not the model's own.",
    "allowed_local_media_path": "Folder from which requests may name images.",
    "model": "Set by the backend: the base model.",
    "served_model_name": "Name under which the base model is answered. Left out: the base model's own.",
    "enable_log_requests": "Left out: requests are not logged.",
    "disable_log_requests": "Likewise.",
}

SERVER_CONFIG: dict[str, str] = {
    "log_file": "Where the server logs; in shared mode trainer and engine. Left out: in the model's folder, "
    "[`logs/`](../fault-handling.md#logs).",
    "server_args": "Arguments of the HTTP server: [below](#server_args).",
    "engine_args": "Arguments of the engine; they win over those of the model's configuration.",
}

SERVER: dict[str, str] = {
    "host": "Address to listen on. Left out: 127.0.0.1.",
    "port": "Port to listen on. Left out: a free one.",
    "api_key": "Key that requests must bring.",
    "chat_template": "Template of the server alone; prefer the model's `chat_template`, which holds for training too.",
    "chat_template_content_format": "Likewise.",
    "enable_auto_tool_choice": "Let the model decide about tool calls.",
    "tool_call_parser": "How tool calls are read from the model's text: hermes, llama3_json, mistral, …",
    "tool_parser_plugin": "File with a parser of your own.",
    "reasoning_parser": "How reasoning is told from the answer.",
    "return_tokens_as_token_ids": "Logprobs name tokens by id, as training needs.",
    "uvicorn_log_level": "How much the HTTP server logs.",
    "ssl_keyfile": "Key for TLS.",
    "ssl_certfile": "Certificate for TLS.",
    "ssl_ca_certs": "Authorities for TLS.",
    "lora_modules": "Ignored: the backend loads the adapters.",
}
