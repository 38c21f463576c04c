"""Host one model's service, in a child process or in a thread, and know what it serves without asking.

Calls may come from any event loop of this process. What the service serves is learned from its own events, so that a
name is never given out before the server has confirmed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import threading
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from art import dev
from art.errors import LocalServingUnavailableError, TrainerDiedError
from art.inference.gate import ServingGate
from art.inference.rotating_log import start_log
from art.inference.tasks import uninterrupted
from art.local.progress import PhaseBar, RowBar
from art.model import TrainableModel
from art.unsloth.service import UnslothService
from art.unsloth.worker import worker_environment
from mp_actors import ActorProxy, ThreadActor, move_to_child_process, move_to_thread

logger = logging.getLogger(__name__)

PROCESS_TITLE = "model-service"
CANCELLED_STEP_LIMIT_S = 120.0  # for a trainer to end a cancelled step, or to be killed, and the engine to go on


class HostedService:
    """A running service and what is known about it.

    Attributes:
        actor: Stands for the service; every method is awaited or iterated.
        served_step: The step that the server confirmed last; None before the first.
        gate: Whether rollouts may go ahead, and why not; outlives this service when another one takes its place.
        address: Host and port, once the server runs.
        api_key: The key that the server asks for.
        phases: Shows what is being started.
        rows: Shows how far a training step is.
        rows_trained: Optimizer steps done so far.
    """

    def __init__(self, service: UnslothService, *, in_process: bool, log_path: Path, gate: ServingGate) -> None:
        self.served_step: int | None = None
        self.rows_trained = 0
        self.gate = gate
        self.address: tuple[str, int] | None = None
        self.api_key = "default"
        self.phases = PhaseBar(service.model_name)
        self.rows = RowBar()
        self._model_name = service.model_name
        self._models: list[weakref.ref[TrainableModel[Any, Any]]] = []
        self._settings: dict[str, Any] | None = None
        self._lock = threading.Lock()
        self._closed = False
        self.actor: ActorProxy | ThreadActor
        service.has_own_process = not in_process
        if in_process:
            self.actor = move_to_thread(service, name=f"art-service-{service.model_name}")
        else:
            actor = move_to_child_process(
                service, log_file=start_log(log_path), process_name=PROCESS_TITLE, env=worker_environment()
            )
            actor.on_death(self._service_died)
            self.actor = actor
        self.actor.on_event(self._handle_event)

    def follow(self, model: TrainableModel[Any, Any]) -> None:
        """Keep a model object's `inference_model_name` at the newest served step."""
        with self._lock:
            known = [reference() for reference in self._models]
            if not any(model is other for other in known):
                self._models.append(weakref.ref(model))

    def compare_settings(self, model: TrainableModel[Any, Any], server_config: dev.OpenAIServerConfig | None) -> None:
        """Warn where a model is registered again with other settings: it goes on with those that it was started with.

        Args:
            model: Its settings are the first that were given, or are compared with those; None asks for nothing.
            server_config: Likewise.
        """
        given = {
            "base_model": model.base_model,
            "_internal_config": model._internal_config or None,
            "_openai_client_config": server_config,
        }
        with self._lock:
            if self._settings is None:
                self._settings = copy.deepcopy(given)
                return
        others = [key for key, value in given.items() if value is not None and value != self._settings[key]]
        if others:
            logger.warning(
                "%s is served already, with other settings: %s of this registration has no effect. Close the backend "
                "first, or give the model another name",
                *(self._model_name, " and ".join(others)),
            )

    def require_serving(self) -> None:
        """Raise what made serving fail, if it did.

        Raises:
            LocalServingUnavailableError: The server is gone; the error carries the diagnosis.
        """
        if self.gate.failure is not None:
            raise self.gate.failure

    def close(self) -> None:
        """End the service. Blocks; safe to call twice."""
        self._closed = True
        if self.gate.failure is None:
            self.gate.fail(LocalServingUnavailableError(f"the backend that served {self._model_name} was closed"))
        self.phases.close()
        self.rows.close()
        self.actor.close()

    def _handle_event(self, event: dict[str, Any]) -> None:
        if self._closed:
            return  # the gate and the models may belong to another service by now
        kind = event["kind"]
        if kind == "served":
            self._serves(int(event["step"]))
        elif kind == "unavailable":
            self.gate.fail(event["error"])
        elif kind == "recovering":
            self.gate.close(event["text"], event.get("facts"))
        elif kind == "recovered":
            self.gate.open()
        elif kind == "phase":
            self.phases.show(event["text"])
        elif kind == "train_progress":
            self.rows_trained += 1
            self.rows.show(event["step"], event["done"], event["total"])

    def _serves(self, step: int) -> None:
        self.rows.close()  # fewer rows than expected may have had something to train
        self.served_step = step
        name = f"{self._model_name}@{step}"
        with self._lock:
            models = [model for reference in self._models if (model := reference()) is not None]
        for model in models:
            model.inference_model_name = name

    def _service_died(self, error: TrainerDiedError) -> None:
        failure = LocalServingUnavailableError(
            f"the process that trains and serves {self._model_name} is gone: {error}. Every saved step is intact: "
            "register the model again, in this script or a new one, to go on from the newest checkpoint",
            facts={"exit_code": error.exit_code, "log_path": error.log_path},
        )
        logger.error("%s", failure)
        self.gate.fail(failure)


@contextlib.asynccontextmanager
async def ended_when_cancelled(actor: ActorProxy | ThreadActor) -> AsyncIterator[None]:
    """Have a block that trains, and is cancelled, end only when its step is saved or never will be.

    Args:
        actor: Of the service that trains.
    """
    try:
        yield
    except asyncio.CancelledError:
        await uninterrupted(_training_ended(actor))
        raise


async def _training_ended(actor: ActorProxy | ThreadActor) -> None:
    try:
        async with asyncio.timeout(CANCELLED_STEP_LIMIT_S):
            await actor.training_ended()
    except TimeoutError:
        logger.warning(
            "a cancelled step has not ended within %g s, so that it may still be saved", CANCELLED_STEP_LIMIT_S
        )
    except Exception as err:  # noqa: BLE001 - a service that is gone saves nothing
        logger.debug("the service ended with a cancelled step: %r", err)
