"""Build what a service is made of: trainer, runtime, publisher, monitor; and take it down again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from art import dev
from art.checkpoints import checkpoint_dir
from art.dev.chat_template import resolve_chat_template
from art.dev.get_model_config import get_model_config
from art.dev.serving import resolve_serving_settings
from art.dev.settings import SFT_TRAINER_DEFAULTS, SHARED_GPU_RESERVE, ChatTemplateSettings, ServingSettings
from art.errors import ConfigurationError, LocalServingUnavailableError, ServerNotReadyError
from art.inference.adapters import AdapterRegistry
from art.inference.monitor import ServingMonitor
from art.inference.process_server import ServerSpec, open_listener
from art.inference.publish import AdapterPublisher
from art.inference.rotating_log import check_log
from art.inference.runtime import InferenceRuntime
from art.inference.supervised import SupervisedRuntime
from art.inference.tasks import uninterrupted
from art.preprocessing.sft_store import remove_abandoned_stores
from art.unsloth.child_worker import ChildWorker
from art.unsloth.worker import TrainerWorker
from art.utils.directory_lock import DirectoryLock
from art.vllm.engine import EnginePlan, plan_engine

logger = logging.getLogger(__name__)

Emit = Callable[[Mapping[str, Any]], None]
OnFailure = Callable[[LocalServingUnavailableError], Awaitable[None]]


@dataclass(frozen=True)
class ServiceRequest:
    """What a service is to be built for.

    Attributes:
        model_name: The part of the inference name before `@`.
        base_model: Hub id or path.
        config: The model's configuration, as the script wrote it.
        output_dir: The model's folder.
        server_config: The server's configuration, as the script wrote it.
        emit: Told about phases, progress and failures.
    """

    model_name: str
    base_model: str
    config: dev.InternalModelConfig
    output_dir: str
    server_config: dev.OpenAIServerConfig
    emit: Emit

    @property
    def is_dedicated(self) -> bool:
        """Whether trainer and server are apart."""
        return dev.is_dedicated_mode(self.config)


@dataclass
class ServiceParts:
    """What a started service is made of.

    Attributes:
        step: The step that it started with.
        training: Held while a step is trained or skipped.
    """

    step: int
    worker: TrainerWorker | ChildWorker
    runtime: InferenceRuntime
    registry: AdapterRegistry
    publisher: AdapterPublisher
    monitor: ServingMonitor
    lock: DirectoryLock
    chat_template_kwargs: Mapping[str, object]
    training: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def close(self) -> None:
        """Take everything down, the server before the files it serves."""
        async with contextlib.AsyncExitStack() as stack:  # the last one first, each whatever became of the others
            stack.callback(self.lock.release)
            stack.push_async_callback(self.worker.close)
            stack.callback(self.registry.close)
            stack.push_async_callback(self.runtime.close)
            stack.push_async_callback(self.publisher.close)
            stack.push_async_callback(self.monitor.stop)


async def build_parts(request: ServiceRequest, on_failure: OnFailure) -> ServiceParts:
    """Load the trainer, start the server, publish the newest checkpoint; step 0 is made where there is none.

    Args:
        request: What for.
        on_failure: Awaited with the diagnosis when an engine in this process has died.

    Raises:
        ConfigurationError: A setting is wrong, the port is taken, or another process trains this model.
        DependencyError: A package is absent or unusable.
        ServerStartError: The engine did not start.
        ServerNotReadyError: It did not start in time.
    """
    model_dir = Path(request.output_dir)
    lock = DirectoryLock(model_dir)
    await asyncio.to_thread(lock.acquire)
    worker: TrainerWorker | ChildWorker | None = None
    runtime: InferenceRuntime | None = None
    try:
        await asyncio.to_thread(remove_abandoned_stores, model_dir / "tensors")
        gpu_count = await asyncio.to_thread(count_gpus)
        config = get_model_config(request.base_model, request.output_dir, request.config, has_cuda=gpu_count > 0)
        settings = resolve_serving_settings(config.get("serving"), dedicated=request.is_dedicated)
        _check_gpus(request, gpu_count)
        # Loading a trainer takes long, to learn only then that the server has no port or no log.
        open_listener(*_wanted_address(request)).close()
        await asyncio.to_thread(check_log, _log_path(request))
        worker = _make_worker(request, config, settings, has_cuda=gpu_count > 0)
        request.emit({"kind": "phase", "text": "loading the trainer"})
        step = await worker.load()
        await worker.offload()
        request.emit({"kind": "phase", "text": "starting the inference engine"})
        runtime = await _start_runtime(request, config, settings, on_failure, step=step, has_cuda=gpu_count > 0)
        registry = AdapterRegistry(request.model_name, model_dir)
        publisher = AdapterPublisher(
            runtime,
            registry,
            max_logprob_gap=settings.max_logprob_gap,
            max_live_adapters=settings.max_live_adapters,
        )
        if isinstance(runtime, SupervisedRuntime):  # before the first step is live: its server may die at any time
            runtime.live_adapters = lambda: sorted(registry.live.values(), key=lambda adapter: adapter.step)
            runtime.on_restarted = publisher.confirm_after_restart
            runtime.on_event = request.emit
        await publisher.publish(step, checkpoint_dir(model_dir, step))
    except BaseException:
        if runtime is not None:
            await uninterrupted(runtime.close())
        if worker is not None:
            await uninterrupted(worker.close())
        lock.release()
        raise
    monitor = ServingMonitor(runtime, interval_s=settings.health_interval_s, on_failure=runtime.end_hung)
    kwargs = dict(config.get("chat_template_kwargs") or {})
    return ServiceParts(step, worker, runtime, registry, publisher, monitor, lock, kwargs)


def count_gpus() -> int:
    """Return how many CUDA devices this process sees."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _check_gpus(request: ServiceRequest, gpu_count: int) -> None:
    if not request.is_dedicated:
        return
    wanted = [*request.config["trainer_gpu_ids"], *request.config["inference_gpu_ids"]]
    if gpu_count == 0:
        logger.warning(
            "this machine has no CUDA device: trainer and server of %s both run on the CPU", request.model_name
        )
    elif max(wanted) >= gpu_count:
        raise ConfigurationError(
            f"trainer_gpu_ids={request.config['trainer_gpu_ids']} and inference_gpu_ids="
            f"{request.config['inference_gpu_ids']} name GPUs that this machine does not have: it shows {gpu_count}"
        )


def _make_worker(
    request: ServiceRequest, config: dev.InternalModelConfig, settings: ServingSettings, *, has_cuda: bool
) -> TrainerWorker | ChildWorker:
    share = None
    if settings.share_gpu:
        share = max(0.0, 1 - SHARED_GPU_RESERVE - config["engine_args"].get("gpu_memory_utilization", 0.0))
    given = request.config.get("trainer_args") or {}  # before RL's defaults were filled in
    worker = TrainerWorker(
        request.base_model,
        config,
        request.output_dir,
        save_optimizer=settings.save_optimizer,
        gpu_memory_share=share,
        sft_args={key: value for key, value in given.items() if key in SFT_TRAINER_DEFAULTS},
    )
    if not request.is_dedicated:
        worker.on_event = request.emit
        return worker
    env = {"CUDA_VISIBLE_DEVICES": _visible_devices(request.config["trainer_gpu_ids"])} if has_cuda else {}
    child = ChildWorker(worker, log_path=Path(request.output_dir) / "logs" / "trainer.log", env=env)
    child.on_event = request.emit
    return child


async def _start_runtime(
    request: ServiceRequest,
    config: dev.InternalModelConfig,
    settings: ServingSettings,
    on_failure: OnFailure,
    *,
    step: int,
    has_cuda: bool,
) -> InferenceRuntime:
    log_path = _log_path(request)
    completed = dev.get_openai_server_config(
        request.model_name,
        request.base_model,
        str(log_path),
        lora_path=str(checkpoint_dir(Path(request.output_dir), step)),
        config=_with_chat_template(request.server_config, resolve_chat_template(config)),
    )
    cores = os.cpu_count() or 1
    plan = plan_engine(
        engine_args=config["engine_args"],
        server_config=completed,
        overrides=dict(request.server_config.get("engine_args") or {}),
        max_live_adapters=settings.max_live_adapters,
        has_cuda=has_cuda,
        cpu_threads=max(1, cores // 2),  # more of them wait for each other as soon as anything else runs
    )
    host, port = _wanted_address(request)
    if request.is_dedicated:
        return await SupervisedRuntime.start(_server_spec(request, plan, settings, host, port, log_path), settings)
    return await _start_in_process(plan, settings, on_failure, host, port, log_path)


def _with_chat_template(config: dev.OpenAIServerConfig, chat: ChatTemplateSettings) -> dev.OpenAIServerConfig:
    """Have the server render conversations as training does; what the script says about the server itself wins."""
    wanted: dict[str, Any] = {}
    if chat.template is not None:
        wanted["chat_template"] = chat.template
    if chat.kwargs:
        wanted["default_chat_template_kwargs"] = dict(chat.kwargs)
    if chat.content_format != "auto":
        wanted["chat_template_content_format"] = chat.content_format
    server_args = {**wanted, **(config.get("server_args") or {})}
    return cast(dev.OpenAIServerConfig, {**config, "server_args": server_args})


def _wanted_address(request: ServiceRequest) -> tuple[str, int]:
    """Return host and port that the script asks for; port 0 for any."""
    server_args = request.server_config.get("server_args") or {}
    return server_args.get("host") or "127.0.0.1", int(server_args.get("port") or 0)


def _log_path(request: ServiceRequest) -> Path:
    name = "vllm-dedicated.log" if request.is_dedicated else "vllm.log"
    return Path(request.server_config.get("log_file") or Path(request.output_dir) / "logs" / name)


def _server_spec(
    request: ServiceRequest, plan: EnginePlan, settings: ServingSettings, host: str, port: int, log_path: Path
) -> ServerSpec:
    return ServerSpec(
        model=str(plan.engine_args["model"]),
        engine_args=plan.engine_args,
        server_args=plan.server_args,
        host=host,
        port=port,
        log_path=log_path,
        start_timeout_s=settings.server_start_timeout_s,
        cuda_visible_devices=_visible_devices(request.config["inference_gpu_ids"]) if plan.has_cuda else None,
        cpu_threads=plan.cpu_threads,
    )


async def _start_in_process(
    plan: EnginePlan, settings: ServingSettings, on_failure: OnFailure, host: str, port: int, log_path: Path
) -> InferenceRuntime:
    from art.vllm.in_process import InProcessRuntime

    start = InProcessRuntime.start(
        plan, host=host, port=port, settings=settings, log_path=log_path, on_death=on_failure
    )
    try:
        return await asyncio.wait_for(start, settings.server_start_timeout_s)
    except TimeoutError as err:
        raise ServerNotReadyError(
            f"the inference engine for {plan.engine_args['model']} was not ready after "
            f"{settings.server_start_timeout_s:g} s (ART_SERVER_TIMEOUT or serving['server_start_timeout_s']); "
            f"log: {log_path}",
            waited_s=settings.server_start_timeout_s,
            url=f"http://{host}:{port}",
            log_path=str(log_path),
        ) from err


def _visible_devices(ids: list[int]) -> str:
    """Name GPUs for a child's CUDA_VISIBLE_DEVICES: our ids count within what this process sees."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return ",".join(visible[number] if visible else str(number) for number in ids)
