"""Where the package differs from the recorded signatures on purpose, and why.

A pattern is matched against "module:qualified.name" (`*` matches anything). One that no difference needs is an error.
"""

from __future__ import annotations

# Names that begin with an underscore are ours to design, but for these: scripts use them, or other packages that
# stand in for a backend or a model do.
KEPT_PRIVATE_NAMES = (
    "art.backend:Backend._*",
    "art.local.backend:LocalBackend._delete_checkpoint_files",
    "art.local.backend:LocalBackend._experimental_*",
    "art.local.backend:LocalBackend._get_step",
    "art.local.backend:LocalBackend._model_inference_name",
    "art.local.backend:LocalBackend._prepare_backend_for_training",
    "art.local.backend:LocalBackend._train_model",
    "art.local.backend:LocalBackend._train_sft",
    "art.model:Model._backend",
    "art.model:Model._get_output_dir",
    "art.model:Model._get_wandb_run",
    "art.model:Model._log_metrics",
    "art.model:Model._openai_client",
    "art.model:Model._run_start_time",
    "art.model:Model._s3_*",
    "art.model:TrainableModel._internal_config",
    "art.unsloth.service:UnslothService._latest_step",
    "art.unsloth.service:UnslothService._reload_adapter",
)

# The trainer's and the engine's interior, which no script reaches: how it is built is this package's own.
_INTERIOR = (
    "art.loss:Loss.entropy",  # renamed in 0.5.18; 0.5.17's `mean_entropy` is kept
    "art.loss:Loss.policy_loss",  # likewise `mean_policy_loss`
    "art.preprocessing.tokenize:TokenizedResult.choice_offsets",
    "art.preprocessing.tokenize:TokenizedResult.extra_logprobs",
    "art.unsloth.service:CausalLM",
    "art.unsloth.service:SupportsLoadLora*",
    "art.unsloth.service:UnslothService.__post_init__",
    "art.unsloth.service:UnslothService.aclose",
    "art.unsloth.service:UnslothService.close",
    "art.unsloth.service:UnslothService.llm",
    "art.unsloth.service:UnslothService.prune_loaded_adapters",
    "art.unsloth.service:UnslothService.rollout_weights_mode",
    "art.unsloth.service:UnslothService.train_sft",  # its settings come with the batches, as in 0.5.17
    "art.unsloth.service:UnslothState*",
    "art.unsloth.service:do_sleep",
    "art.unsloth.service:do_wake_up",
    "art.unsloth.service:precalculate_new_logprobs",
    "art.unsloth.service:process_train_batch",
    "art.unsloth.service:save_checkpoint",
    "art.unsloth.train:*",
)

INTENDED: dict[str, str] = {
    **dict.fromkeys(_INTERIOR, "interior of the trainer, which no script reaches"),
    "art:conf": "a variable left over from an import effect that this package does not have",
    "art.auto_trajectory:patch_httpx": "httpx is only touched while a capture is running",
    "art.cli:SKILL_NAMES": "no texts of a vendor are installed",
    "art.cli:WANDB_INFERENCE_*": "no wizard on a hosted model",
    "art.cli:install_skills": "no texts of a vendor are installed",
    "art.cli:run": "listens on this machine only, unless told otherwise",
    "art.cli:train_*": "no wizard on a hosted model",
    "art.cli:help_command": "`art --help` says the same",
    "art.cli:init": "no project templates",
    "art.dev.engine:WeightTransferConfig*": "only adapters are sent to the engine, never merged weights",
    "art.dev.train:TrainConfig.moe_routing_replay_*": "belongs to a trainer that this package does not have",
    **dict.fromkeys(
        (
            "art.langgraph.llm_wrapper:CURRENT_CONFIG",
            "art.langgraph.llm_wrapper:LoggingLLM*",
            "art.langgraph.llm_wrapper:add_thread",
            "art.langgraph.llm_wrapper:create_messages_from_logs",
            "art.langgraph.llm_wrapper:mappings",
            "art.langgraph.logging:*",
            "art.langgraph.message_utils:*",
        ),
        "conversations are recorded in memory: no log files, and nothing is converted back from them",
    ),
    "art.local.adapter_leases:*": "interior of `LocalBackend.adapter_lease`, which is kept",
    "art.local.backend:LocalBackend.__exit__": "`with` gives its arguments by position",
    "art.local.backend:LocalBackend.__aexit__": "`async with` gives its arguments by position",
    "art.local.backend:LocalBackend.train": "`loss_fn` None means 'cispo', so that `ppo=True` can stand alone",
    "art.pipeline_trainer.trainer:PipelineTrainer.__init__": "`eval_step_0` is `eval_at_start` too; None means yes",
    "art.pipeline_trainer.trainer:T": "a type variable of another module's annotations",
    "art.preprocessing.tokenize:ChatTemplateTool*": "names for annotations only",
    "art.local.service:ModelService.train_sft": "its settings come with the batches, as in 0.5.17",
    "art.transformers.patches:*": "nothing of transformers is patched on import",
    "art.utils.benchmarking.load_trajectories:cache_path": "a cache that was never used",
    "art.utils.lifecycle:*": "interior of process handling, which no script reaches",
    "art.utils.managed_process:*": "interior of process handling, which no script reaches",
    "art.utils.network:*": "interior of process handling, which no script reaches",
    "art.utils.old_benchmarking.display_image_grid:*": "reads files that nothing writes any more",
    "art.utils.old_benchmarking.generate_*": "reads files that nothing writes any more",
    "art.utils.old_benchmarking.load_benchmarked_models:*": "reads files that nothing writes any more",
    "art.utils.old_benchmarking.types:*": "reads files that nothing writes any more",
    "art.utils.retry:?": "type variables of another module's annotations",
    "art.utils.sft:resolve_sft_batch_size": "interior of a backend",
    "art.vllm*": "interior of serving, gone in 0.5.18 too",
    "art.weight_transfer*": "only adapters are sent to the engine, never merged weights",
    "mp_actors.move:*": "`mp_actors` itself has the two names that are used",
    "mp_actors.traceback:*": "interior of child processes, which no script reaches",
}
