"""`LocalBackend`: train models and serve every step of them on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import httpx

from art import dev
from art.checkpoints import checkpoint_dir, delete_checkpoints, newest_step
from art.dev.checks import whole
from art.dev.serving import resolve_serving_settings
from art.dev.train import resolve_sft_settings, resolve_train_settings
from art.dev.validate import validate_dedicated_config, validate_internal_config, validate_server_config
from art.errors import ConfigurationError, LocalServingUnavailableError
from art.inference.gate import ServingGate
from art.inference.rollout_transport import RolloutTransport
from art.inference.tasks import uninterrupted
from art.local import pipeline_support
from art.local.base_model import check_base_model
from art.local.checkpoint_transfer import CheckpointTransferMethods
from art.local.gpu_costs import gpu_cost_per_hour_usd
from art.local.hosting import HostedService, ended_when_cancelled
from art.local.sft import train_sft
from art.local.train_options import build_configs
from art.metrics_taxonomy import average_metric_samples, summarize_trajectory_groups
from art.model import Model, TrainableModel
from art.model.awaited_call import only_awaited
from art.model.model_file import write_model_json
from art.model.openai_client import affordable_connections, rollout_timeout
from art.model.training_input import require_groups
from art.preprocessing.plain_copies import plain_groups
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import LocalTrainResult, TrainConfig, TrainSFTConfig
from art.unsloth.service import UnslothService
from art.utils.output_dirs import get_default_art_path, get_model_dir
from art.utils.record_provenance import record_provenance
from art.utils.trajectory_migration import auto_migrate_on_register

logger = logging.getLogger(__name__)

PROVENANCE = "local-rl"
"""What adapters in W&B are labelled with that were trained here."""
LABEL_WAIT_S = 2.0
"""How long a step waits for that: W&B may be slow, and the label may come later."""

_Key = tuple[str, str]
_leased_steps: contextvars.ContextVar[dict[_Key, int] | None] = contextvars.ContextVar("art_leased_steps", default=None)


class LocalBackend(CheckpointTransferMethods):
    """Trains with Unsloth and serves with vLLM on this machine.

    Use it as a context manager, or call `close()`: either ends every process that it started.

    Args:
        in_process: Keep trainer and server in this process, in threads, instead of a child process.
        path: Where runs are kept; `.art` at the repository's root, or in the working directory, by default.
        gpu_cost_per_hour_usd: Price of one GPU, for the metric `costs/gpu`.

    Raises:
        ConfigurationError: The path cannot be made or written.
    """

    def __init__(
        self, *, in_process: bool = False, path: str | None = None, gpu_cost_per_hour_usd: float | None = None
    ) -> None:
        self._in_process = in_process
        self._path = os.path.abspath(path if path is not None else get_default_art_path())
        self._gpu_cost_per_hour_usd = gpu_cost_per_hour_usd
        self._services: dict[_Key, HostedService] = {}
        self._gates: dict[_Key, ServingGate] = {}
        self._lock = threading.Lock()
        self._starting: dict[_Key, threading.Lock] = {}
        _make_folder(Path(self._path))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close_services()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End everything that the backend started. Safe to call twice; models can be registered again afterwards."""
        await asyncio.to_thread(self._close_services)

    async def register(self, model: Model[Any, Any]) -> None:
        """Make the model's folder and write its `model.json`. Called by `model.register(backend)`.

        Raises:
            ConfigurationError: The folder cannot be written, or the configuration is wrong.
        """
        if isinstance(model, TrainableModel):
            validate_internal_config(model._internal_config)
            validate_dedicated_config(model._internal_config or dev.InternalModelConfig())
        model.base_path = self._path
        model_dir = self._model_dir(model)
        _make_folder(model_dir)
        await asyncio.to_thread(write_model_json, model, model_dir)
        migrated = await asyncio.to_thread(auto_migrate_on_register, str(model_dir))
        for error in migrated.errors:
            logger.warning("old trajectory file kept as it is: %s", error)
        if isinstance(model, TrainableModel):
            await asyncio.to_thread(model._get_wandb_run)

    @only_awaited("backend.train gives nothing to iterate over: write `result = await backend.train(model, groups, …)`")
    async def train(
        self,
        model: TrainableModel[Any, Any],
        trajectory_groups: Iterable[TrajectoryGroup],
        *,
        learning_rate: float = 5e-6,
        kl_penalty_coef: float = 0.0,
        kl_penalty_reference_step: int | None = None,
        kl_ref_adapter_path: str | None = None,
        ppo: bool = False,
        loss_fn: Literal["cispo", "ppo"] | None = None,
        loss_fn_config: dict[str, Any] | None = None,
        normalize_advantages: bool = True,
        adam_params: Any = None,
        epsilon: float | None = None,
        epsilon_high: float | None = None,
        advantage_balance: float = 0.0,
        scale_rewards: bool = True,
        importance_sampling_level: Literal["token", "sequence", "average", "geometric_average"] = "token",
        max_negative_advantage_importance_sampling_weight: float | None = None,
        mask_prob_ratio: bool = False,
        kimi_k2_tau: float | None = None,
        precalculate_logprobs: bool = False,
        allow_training_without_logprobs: bool = False,
        plot_tensors: bool = False,
        truncated_importance_sampling: float | None = None,
        scale_learning_rate_by_reward_std_dev: bool = False,
        logprob_calculation_chunk_size: int = 1024,
        num_trajectories_learning_rate_multiplier_power: float = 0.0,
        packed_sequence_length: int | None = None,
        save_checkpoint: bool = True,
        verbose: bool = False,
    ) -> LocalTrainResult:
        """Train one step by reinforcement learning; on return rollouts are answered by it. Logs nothing.

        The options are those of `art.dev.TrainConfig`, where they are explained; beside them:

        Args:
            model: A registered model.
            trajectory_groups: Scored rollouts.
            learning_rate: Rate of the optimizer.
            kl_penalty_coef: Weight of the penalty on drift from the reference.
            kl_penalty_reference_step: Take this step's checkpoint as the reference.
            kl_ref_adapter_path: Folder of the reference adapter; wins over the step.
            ppo: Use the clipped surrogate of PPO in place of CISPO.
            loss_fn: The same, spelled as in newer releases.
            loss_fn_config: Must be None.
            normalize_advantages: False means `scale_rewards=False`.
            adam_params: Must be None.
            epsilon: Lower clip range.
            epsilon_high: Upper clip range.
            advantage_balance: Weakens negative (above 0) or positive (below 0) advantages.
            scale_rewards: Divide advantages by the standard deviation of their group's rewards.
            importance_sampling_level: What the ratio is taken over.
            max_negative_advantage_importance_sampling_weight: Cap on the ratio where the advantage is negative.
            mask_prob_ratio: Leave out tokens whose ratio is out of bounds.
            kimi_k2_tau: Weight of the log ratio taken off the advantage.
            precalculate_logprobs: Recompute the old logprobs with the current weights first.
            allow_training_without_logprobs: Also train turns without sampled logprobs.
            plot_tensors: Write a picture of the packed batch.
            truncated_importance_sampling: Upper bound on the correction for the sampler's logprobs.
            scale_learning_rate_by_reward_std_dev: Accepted, has no effect.
            logprob_calculation_chunk_size: Tokens whose logits are made at once.
            num_trajectories_learning_rate_multiplier_power: Power of the rate's multiplier.
            packed_sequence_length: Tokens of a packed row.
            save_checkpoint: False leaves the path out of the result; the step is saved all the same, to be served.
            verbose: Log every row.

        Returns:
            The new step, its averaged metrics, and its checkpoint's path.

        Cancelled, it returns when the step has ended: after the row that is being trained, without a checkpoint, or
        once the step is saved, if that had begun. The next call works.

        Raises:
            ConfigurationError: An option is wrong.
            TrainingError: Training failed; the step served before serves on, and the next call works.
            InferenceError: The step is saved but could not be served.
        """
        started = time.monotonic()
        groups = require_groups(trajectory_groups)
        if kl_ref_adapter_path is None and kl_penalty_reference_step is not None:
            step = whole(at_least=0)("kl_penalty_reference_step", kl_penalty_reference_step)
            kl_ref_adapter_path = str(checkpoint_dir(self._model_dir(model), step))
        config, dev_config = build_configs(
            learning_rate=learning_rate,
            kl_penalty_coef=kl_penalty_coef,
            kl_ref_adapter_path=kl_ref_adapter_path,
            ppo=ppo,
            loss_fn=loss_fn,
            loss_fn_config=loss_fn_config,
            adam_params=adam_params,
            normalize_advantages=normalize_advantages,
            scale_rewards=scale_rewards,
            options={
                "epsilon": epsilon,
                "epsilon_high": epsilon_high,
                "advantage_balance": advantage_balance,
                "importance_sampling_level": importance_sampling_level,
                "max_negative_advantage_importance_sampling_weight": max_negative_advantage_importance_sampling_weight,
                "mask_prob_ratio": mask_prob_ratio,
                "kimi_k2_tau": kimi_k2_tau,
                "precalculate_logprobs": precalculate_logprobs,
                "allow_training_without_logprobs": allow_training_without_logprobs,
                "plot_tensors": plot_tensors,
                "truncated_importance_sampling": truncated_importance_sampling,
                "scale_learning_rate_by_reward_std_dev": scale_learning_rate_by_reward_std_dev or None,
                "logprob_calculation_chunk_size": logprob_calculation_chunk_size,
                "num_trajectories_learning_rate_multiplier_power": num_trajectories_learning_rate_multiplier_power,
                "packed_sequence_length": packed_sequence_length,
            },
        )
        samples = [sample async for sample in self._train_model(model, groups, config, dev_config, verbose)]
        metrics = average_metric_samples(samples)
        metrics.setdefault("time/step_trainer_s", time.monotonic() - started)
        step = await self._get_step(model)
        path = checkpoint_dir(self._model_dir(model), step)
        labelled = asyncio.get_running_loop().run_in_executor(None, _label_artifact, model)
        await asyncio.wait({labelled}, timeout=LABEL_WAIT_S)
        return LocalTrainResult(
            step=step, metrics=metrics, checkpoint_path=str(path) if save_checkpoint and path.is_dir() else None
        )

    @contextlib.asynccontextmanager
    async def adapter_lease(self, model: TrainableModel[Any, Any], step: int) -> AsyncIterator[str]:
        """Keep a step served while the block runs; `get_inference_name()` inside it gives that step's name.

        Raises:
            CheckpointIncompleteError: The step has no complete checkpoint.
            InferenceError: It could not be served.
        """
        hosted = self._hosted(model)
        await hosted.actor.acquire_step(step)
        key = _key(model)
        token = _leased_steps.set({**(_leased_steps.get() or {}), key: step})
        try:
            yield f"{model.name}@{step}"
        finally:
            _leased_steps.reset(token)
            await hosted.actor.release_step(step)

    async def prune_model_adapters(self, model: TrainableModel[Any, Any], *, retain_steps: set[int]) -> None:
        """Unload every step from the server but these, the served one, and those that are leased."""
        await self._hosted(model).actor.prune_adapters(sorted(retain_steps))

    def check_pipeline_options(self, model: TrainableModel[Any, Any], options: dict[str, Any]) -> None:
        """Refuse options of a pipeline that `train` would refuse, before it starts.

        Raises:
            ConfigurationError: An option is not supported, or the model is not registered.
        """
        self._hosted(model)
        pipeline_support.check_options(model, options)

    async def serve_newest(self, model: TrainableModel[Any, Any]) -> None:
        """Have rollouts get the newest checkpoint, where training ended after it was saved and before it was served.

        Raises:
            InferenceError: It could not be served.
        """
        await self._hosted(model).actor.serve_newest()

    def describe_serving(self, model: TrainableModel[Any, Any]) -> str:
        """Say in words whether the model's server answers, and with what."""
        return pipeline_support.describe_serving(self._hosted(model))

    def is_recovering(self, model: TrainableModel[Any, Any]) -> bool:
        """Whether the model's server is being started again, so that rollouts wait."""
        gate = self._hosted(model).gate
        return not gate.is_open and gate.failure is None

    async def work_done(self, model: TrainableModel[Any, Any]) -> tuple[float, float]:
        """Count the tokens that the model's server has processed, and the optimizer steps done, so far."""
        return await pipeline_support.work_done(self._hosted(model))

    def supports_automatic_train_step_metrics(self) -> bool:
        """`Model.log` may add wall time and GPU cost."""
        return True

    def automatic_gpu_cost_per_hour_usd(self, model: Model[Any, Any]) -> float | None:
        """Return the hourly price of the model's GPUs; None when it is unknown."""
        config = model._internal_config if isinstance(model, TrainableModel) else None
        return gpu_cost_per_hour_usd(config, self._gpu_cost_per_hour_usd)

    def _model_inference_name(self, model: Model[Any, Any], step: int | None = None) -> str:
        """Name a step as rollouts ask for it; without `step`, the newest one that the server has confirmed.

        Raises:
            LocalServingUnavailableError: The server is gone, so no name would be answered.
        """
        if step is None:
            step = (_leased_steps.get() or {}).get(_key(model))
        if step is None:
            hosted = self._services.get(_key(model))
            if hosted is not None:
                hosted.require_serving()
                step = hosted.served_step
        if step is None:
            step = newest_step(self._model_dir(model)) or 0
        return f"{model.name}@{step}"

    async def _get_step(self, model: TrainableModel[Any, Any]) -> int:
        if not model.trainable:
            return 0
        return await asyncio.to_thread(newest_step, self._model_dir(model)) or 0

    async def _prepare_backend_for_training(
        self, model: TrainableModel[Any, Any], config: dev.OpenAIServerConfig | None = None
    ) -> tuple[str, str]:
        """Start the model's service and server, once; return base URL and API key."""
        validate_server_config(config)
        await asyncio.to_thread(check_base_model, model.base_model)
        hosted, is_new = await asyncio.to_thread(self._host, model, config)
        hosted.compare_settings(model, config)
        try:
            await hosted.actor.ready()
            host, port = await hosted.actor.start_openai_server(config)
        except BaseException as err:
            if is_new:  # one that was running before serves on for those who use it
                hosted.gate.fail(LocalServingUnavailableError(f"{model.name} could not be started: {err}"))
                await uninterrupted(asyncio.to_thread(self._drop, model, hosted))
            raise
        finally:
            hosted.phases.close()
        if is_new:
            hosted.address = (host, port)
            hosted.api_key = (config or {}).get("server_args", {}).get("api_key") or "default"
        hosted.follow(model)
        hosted.gate.open()
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{port}/v1", hosted.api_key

    async def _delete_checkpoint_files(self, model: TrainableModel[Any, Any], steps_to_keep: list[int]) -> None:
        """Delete all checkpoints but these and those that are served by default or leased."""
        keep = set(steps_to_keep)
        hosted = self._services.get(_key(model))
        if hosted is not None and hosted.gate.failure is None:
            keep.update(await hosted.actor.needed_steps())
            await hosted.actor.prune_adapters(sorted(keep))
        newest = await self._get_step(model)
        deleted = await asyncio.to_thread(delete_checkpoints, self._model_dir(model), keep | {newest})
        logger.info("checkpoints deleted: steps=%s", deleted)

    async def _train_model(
        self,
        model: TrainableModel[Any, Any],
        trajectory_groups: list[TrajectoryGroup],
        config: TrainConfig,
        dev_config: dev.TrainConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        hosted = self._hosted(model)
        hosted.require_serving()
        groups = require_groups(trajectory_groups)
        settings = resolve_train_settings(config, dev_config)
        summary = summarize_trajectory_groups(groups)
        counts = {"data/step_num_groups_submitted": float(summary.num_groups_submitted)}
        batch = await hosted.actor.prepare_batch(await asyncio.to_thread(plain_groups, groups), settings)
        counts |= batch.metrics
        if batch.disk_packed_tensors is None:
            logger.warning("step not trained: %s", batch.skip_reason)
            async with ended_when_cancelled(hosted.actor):
                step, publication = await hosted.actor.skip_step()
            yield counts | {
                "data/step_num_groups_trainable": 0.0,
                "data/step_trainer_tokens": 0.0,
                "data/step_num_gradient_steps": 0.0,
                "sync/served_step": float(step),
                "time/step_publish_s": publication.took_s,
            }
            return
        async with ended_when_cancelled(hosted.actor):
            results = [
                metrics
                async for metrics in hosted.actor.train(batch.disk_packed_tensors, config, dev_config, verbose=verbose)
            ]
        for metrics in results:
            yield counts | metrics | {"data/step_num_gradient_steps": float(len(results))}

    async def _train_sft(
        self,
        model: TrainableModel[Any, Any],
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig,
        dev_config: dev.TrainSFTConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        hosted = self._hosted(model)
        hosted.require_serving()
        settings = resolve_sft_settings(config, dev_config)
        async for metrics in train_sft(
            hosted, trajectories, settings, self._model_dir(model) / "tensors", verbose=verbose
        ):
            yield metrics

    def _rollout_http_client(self, model: Model[Any, Any]) -> httpx.AsyncClient | None:
        """Return the client through which rollouts reach this backend's server; it waits out reloads and restarts."""
        hosted = self._services.get(_key(model))
        if hosted is None or not isinstance(model, TrainableModel):
            return None
        config = model._internal_config or dev.InternalModelConfig()
        settings = resolve_serving_settings(config.get("serving"), dedicated=dev.is_dedicated_mode(config))
        connections = affordable_connections()
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=4.0)
        transport = RolloutTransport(hosted.gate, wait_s=settings.rollout_wait_s, limits=limits)
        return httpx.AsyncClient(transport=transport, timeout=rollout_timeout(), follow_redirects=True)

    def _model_dir(self, model: Model[Any, Any]) -> Path:
        return Path(get_model_dir(model, self._path))

    def _is_running(self, model: Model[Any, Any]) -> bool:
        hosted = self._services.get(_key(model))
        return hosted is not None and hosted.gate.failure is None

    def _hosted(self, model: Model[Any, Any]) -> HostedService:
        hosted = self._services.get(_key(model))
        if hosted is None:
            hint = (
                "call `await model.register(backend)` first"
                if model.trainable
                else "only an art.TrainableModel can be trained"
            )
            raise ConfigurationError(
                f"model {model.name!r} of project {model.project!r} is not served by this backend; {hint}"
            )
        return hosted

    def _host(
        self, model: TrainableModel[Any, Any], config: dev.OpenAIServerConfig | None
    ) -> tuple[HostedService, bool]:
        """Return the model's service, made anew where there is none or where it failed, and whether it is new.

        Blocks.
        """
        key = _key(model)
        with self._lock:
            starting = self._starting.setdefault(key, threading.Lock())
        with starting:
            hosted = self._services.get(key)
            if hosted is not None and hosted.gate.failure is None:
                return hosted, False
            if hosted is not None:
                hosted.close()
            model_dir = self._model_dir(model)
            _make_folder(model_dir)
            gate = self._gates.setdefault(key, ServingGate())
            gate.renew(f"the server of {model.name} is being started")
            service = UnslothService(
                model_name=model.name,
                base_model=model.base_model,
                config=model._internal_config or dev.InternalModelConfig(),
                output_dir=str(model_dir),
            )
            hosted = HostedService(
                service,
                in_process=self._in_process or service.is_dedicated,
                log_path=Path((config or {}).get("log_file") or model_dir / "logs" / "vllm.log"),
                gate=gate,
            )
            self._services[key] = hosted
            return hosted, True

    def _drop(self, model: TrainableModel[Any, Any], hosted: HostedService) -> None:
        if self._services.get(_key(model)) is hosted:
            del self._services[_key(model)]
        hosted.close()

    def _close_services(self) -> None:
        with self._lock:
            services = list(self._services.values())
            self._services.clear()
        for hosted in services:
            hosted.close()


def _key(model: Model[Any, Any]) -> _Key:
    return model.project, model.name


def _label_artifact(model: Model[Any, Any]) -> None:
    try:
        run = model._get_wandb_run()
        if run is not None:
            record_provenance(run, PROVENANCE)
    except Exception:
        logger.warning("the artifact of %s in W&B was not labelled", model.name, exc_info=True)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise ConfigurationError(f"{path} cannot be made: {err}; choose another path for the backend") from err
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{path} cannot be written; choose another path for the backend")
