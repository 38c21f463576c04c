"""Faults of the inference server in the middle of a running pipeline: each is waited out, or ends it with one error."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

import art
from art.backend import AnyModel, AnyTrainableModel
from art.checkpoints import checkpoint_dir, list_steps, newest_step
from art.errors import (
    AdapterLoadError,
    AdapterNotServedError,
    InferenceError,
    LocalServingUnavailableError,
    StaleAdapterError,
)
from art.inference.diagnosis import fresh
from art.inference.rollout_transport import RolloutTransport
from art.pipeline_trainer import PipelineTrainer, make_group_rollout_fn
from art.trajectories import TrajectoryGroup
from art.types import TrainResult
from tests.support.conversations import make_choice
from tests.support.fake_backend import FakeBackend
from tests.support.scripted_faults import Faults
from tests.support.serving import MODEL, SETTINGS, Stand, eventually, save_step, serving

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

Model = art.TrainableModel[None, dict[str, Any]]
STEPS = 6
FAULT_AT = 3
SCENARIOS = [{"metadata": {"scenario_id": str(number)}, "number": number} for number in range(200)]
HASTY = dataclasses.replace(SETTINGS, health_interval_s=0.3, health_timeout_s=0.7, adapter_reload_timeout_s=15.0)


_leased: contextvars.ContextVar[int | None] = contextvars.ContextVar("leased_step", default=None)


class StandBackend(FakeBackend):
    """Trains nothing, but saves steps and has a real child process serve them as `LocalBackend` does."""

    def __init__(self, stand: Stand, folder: Path, before_publishing: Callable[[int], Awaitable[None]]) -> None:
        super().__init__(art_path=str(folder))
        self.base_url, self.api_key = stand.runtime.base_url, "default"
        self.trained: list[str] = []
        self._stand = stand
        self._before_publishing = before_publishing

    def _model_inference_name(self, model: AnyModel, step: int | None = None) -> str:
        if self._stand.gate.failure is not None:
            raise fresh(self._stand.gate.failure)
        step = _leased.get() if step is None else step
        return f"{MODEL}@{self._stand.registry.served_step if step is None else step}"

    def _rollout_http_client(self, model: AnyModel) -> httpx.AsyncClient:
        transport = RolloutTransport(self._stand.gate, wait_s=SETTINGS.rollout_wait_s, limits=httpx.Limits())
        return httpx.AsyncClient(transport=transport, timeout=60.0)

    async def _get_step(self, model: AnyTrainableModel) -> int:
        return newest_step(self._stand.model_dir) or 0

    @contextlib.asynccontextmanager
    async def adapter_lease(self, model: AnyTrainableModel, step: int) -> AsyncIterator[str]:
        """Keep a step served."""
        self._stand.registry.acquire(step)
        await self._stand.publisher.serve_again(step, checkpoint_dir(self._stand.model_dir, step))
        token = _leased.set(step)
        try:
            yield f"{MODEL}@{step}"
        finally:
            _leased.reset(token)
            self._stand.registry.release(step)

    async def train(
        self, model: AnyTrainableModel, trajectory_groups: Iterable[TrajectoryGroup], **options: Any
    ) -> TrainResult:
        """Save a step and publish it."""
        groups = list(trajectory_groups)
        step = await self._get_step(model) + 1
        await self._before_publishing(step)
        path = save_step(self._stand.model_dir, step)
        self.trained += [str(group.metadata["scenario_id"]) for group in groups]
        await self._stand.publisher.publish(step, path)
        return TrainResult(step=step)


async def rollout(model: Model, scenario: dict[str, Any], config: Any) -> art.Trajectory:
    """Ask twice, as an agent would."""
    for _ in range(2):
        await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=[{"role": "user", "content": str(scenario["number"])}]
        )
    number = scenario["turn"] = scenario.get("turn", 0) + 1
    return art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "?"}, make_choice()], reward=float(number % 2)
    )


@dataclasses.dataclass
class Outcome:
    """How a run ended, and what it left."""

    trainer: PipelineTrainer[Any, Any]
    backend: StandBackend
    error: BaseException | None
    progress: dict[str, Any]


async def run_pipeline(
    stand: Stand, folder: Path, before_publishing: Callable[[int], Awaitable[None]], steps: int = STEPS
) -> Outcome:
    """Run a pipeline; it must end within a minute, whatever happens."""
    backend = StandBackend(stand, folder, before_publishing)
    model: Model = art.TrainableModel(name="agent", project="p", base_model="none", report_metrics=[])
    await model.register(backend)
    scenarios = [dict(scenario) for scenario in SCENARIOS]
    trainer = PipelineTrainer(
        model,
        backend,
        make_group_rollout_fn(rollout, n=2),
        scenarios,
        None,
        num_rollout_workers=4,
        min_batch_size=2,
        max_batch_size=2,
        max_steps_off_policy=2,
        max_steps=steps,
        stall_timeout_s=30.0,
    )
    error: BaseException | None = None
    async with asyncio.timeout(60), model.openai_client():
        try:
            await trainer.train()
        except InferenceError as err:
            error = err
    return Outcome(trainer, backend, error, (model.read_state() or {})["_pipeline_trainer"])


def injecting(fault: Callable[[], Awaitable[Any]]) -> Callable[[int], Awaitable[None]]:
    """Return what injects a fault right before a step is published."""

    async def before_publishing(step: int) -> None:
        if step == FAULT_AT:
            await fault()

    return before_publishing


async def stop_for(stand: Stand, seconds: float | None) -> None:
    """Stop the server's process; have it go on after so long, or never."""
    pid = stand.runtime.process.pid
    os.kill(pid, signal.SIGSTOP)
    if seconds is not None:
        asyncio.get_running_loop().call_later(seconds, os.kill, pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "orders",
    [
        {"load_statuses": [503, 503, 503]},
        {"drop_after_load": 1},
        {"drop_before_load": 2},
        {"exit_on_load": -9},
        {"exit_after_load": 1},
        {"exit_on_completion": -9},
        {"engine": "silent"},
    ],
    ids=str,
)
async def test_what_passes_is_waited_out_and_nothing_is_lost(tmp_path: Path, orders: dict[str, Any]) -> None:
    async with serving(tmp_path, starts=(Faults(), Faults()), settings=HASTY) as stand:
        outcome = await run_pipeline(stand, tmp_path, injecting(lambda: stand.control(**orders)))
        assert outcome.error is None
        expect_complete(outcome, stand)


@pytest.mark.parametrize("engine", ["failing", "silent"])
async def test_an_engine_that_dies_behind_its_server_is_replaced_while_a_step_trains(
    tmp_path: Path, engine: str
) -> None:
    async with serving(tmp_path, starts=(Faults(), Faults()), settings=HASTY) as stand:

        async def die() -> None:
            await stand.control(engine=engine)
            await eventually(lambda: stand.events[-1:] != [] and stand.events[-1]["kind"] == "recovered", 30.0)

        outcome = await run_pipeline(stand, tmp_path, injecting(die))
        assert outcome.error is None
        expect_complete(outcome, stand)


@pytest.mark.parametrize("stopped_s", [1.0, None])
async def test_a_server_that_stops_is_waited_for_or_replaced(tmp_path: Path, stopped_s: float | None) -> None:
    async with serving(tmp_path, starts=(Faults(), Faults()), settings=HASTY) as stand:
        outcome = await run_pipeline(stand, tmp_path, injecting(lambda: stop_for(stand, stopped_s)))
        assert outcome.error is None
        expect_complete(outcome, stand)


def expect_complete(outcome: Outcome, stand: Stand) -> None:
    """Check that all steps were done, with no rollout failed and no scenario twice."""
    state = outcome.trainer.state
    assert state.policy_version == stand.registry.served_step == STEPS
    assert len(outcome.backend.trained) == len(set(outcome.backend.trained)) == 2 * STEPS
    assert not outcome.progress["batch"]
    unaccounted = outcome.progress["scenario_offset"] - 2 * STEPS - len(outcome.progress["unfinished_offsets"])
    assert unaccounted == state.discarded_stale_groups


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        ({"unlisted": True}, AdapterNotServedError),
        ({"answer_as": "previous"}, StaleAdapterError),
        ({"answer_as": "base"}, StaleAdapterError),
        ({"load_refusal": "rank 64 is above 8"}, AdapterLoadError),
    ],
    ids=str,
)
async def test_a_step_that_cannot_be_served_ends_the_run_and_another_goes_on(
    tmp_path: Path, orders: dict[str, Any], expected: type[InferenceError]
) -> None:
    async with serving(tmp_path, settings=HASTY) as stand:
        outcome = await run_pipeline(stand, tmp_path, injecting(lambda: stand.control(**orders)))
        assert isinstance(outcome.error, expected)
        assert outcome.trainer.state.policy_version == stand.registry.served_step == FAULT_AT - 1
        # The step is saved, so that its batch was trained.
        assert (outcome.progress["training_step"], outcome.progress["batch"]) == (FAULT_AT, None)
    await expect_resumable(tmp_path, outcome)


@pytest.mark.parametrize("how", ["no restarts", "restarts fail", "killed while idle"])
async def test_a_server_that_is_given_up_ends_the_run_with_its_diagnosis(tmp_path: Path, how: str) -> None:
    restarts = 2 if how == "restarts fail" else 0
    settings = dataclasses.replace(HASTY, inference_restarts=restarts)
    starts = (Faults(answer_delay_s=0.02), Faults(start_exit_code=3))

    async with serving(tmp_path, starts=starts, settings=settings) as stand:

        async def kill() -> None:
            os.kill(stand.runtime.process.pid, signal.SIGKILL)
            if how == "killed while idle":  # training goes on for long, and no worker asks anything
                await asyncio.sleep(50)

        outcome = await run_pipeline(stand, tmp_path, injecting(kill))
        assert isinstance(outcome.error, LocalServingUnavailableError)
        assert "killed by SIGKILL" in str(outcome.error)
        facts = outcome.error.facts
        assert facts["exit_code"] == -signal.SIGKILL
        assert {"url", "pid", "log_path", "restarts"} <= set(facts)
        assert outcome.trainer.state.policy_version == FAULT_AT - 1
        assert (outcome.progress["training_step"], outcome.progress["batch"]) == (list_steps(tmp_path)[-1], None)
    await expect_resumable(tmp_path, outcome)


async def expect_resumable(folder: Path, ended: Outcome) -> None:
    """Check that a new run on a new server goes on where one ended."""
    newest = list_steps(folder)[-1]

    async def do_nothing(step: int) -> None:
        return None

    async with serving(folder, steps=(newest,), settings=HASTY) as stand:
        outcome = await run_pipeline(stand, folder, do_nothing, steps=2)
        assert outcome.error is None
        assert outcome.trainer.state.policy_version == stand.registry.served_step == newest + 2
        trained = ended.backend.trained + outcome.backend.trained
        assert len(trained) == len(set(trained))
        came_first = [str(offset) for offset in ended.progress["unfinished_offsets"] if str(offset) not in trained]
        handed_out = outcome.progress["scenario_offset"]
        assert all(int(offset) in outcome.progress["unfinished_offsets"] for offset in came_first)
        assert handed_out >= ended.progress["scenario_offset"]
