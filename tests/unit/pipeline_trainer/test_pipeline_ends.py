"""How runs end, and that none goes on for ever."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
from typing import Any

import pytest

from art.errors import PipelineStalledError
from art.trajectories import TrajectoryGroup
from tests.support.scripted_pipeline import (
    Model,
    ScriptedBackend,
    make_group,
    make_scenarios,
    read_progress,
    roll_out,
)
from tests.unit.pipeline_trainer.conftest import MakeTrainer

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(20)]


async def hang(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
    await asyncio.Event().wait()
    raise AssertionError


async def test_no_scenarios_end_at_once(backend: ScriptedBackend, make_trainer: MakeTrainer) -> None:
    await make_trainer(0).train()
    assert backend.trained() == {}


async def test_a_stop_before_the_start_returns_at_once(backend: ScriptedBackend, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(4)
    trainer.request_stop()
    await trainer.train()
    assert backend.trained() == {}
    await trainer.train()
    assert backend.newest() == 2


async def test_a_trainer_that_runs_cannot_be_started_again(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(4, rollout_fn=hang)
    run = asyncio.create_task(trainer.train())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="running already"):
        await trainer.train()
    trainer.request_stop()
    await run


async def test_a_second_call_goes_on_where_the_first_ended(backend: ScriptedBackend, make_trainer: MakeTrainer) -> None:
    async def generate() -> Any:
        for scenario in make_scenarios(8):
            yield scenario

    trainer = make_trainer(generate(), max_steps=2)
    await trainer.train()
    await trainer.train()
    assert backend.newest() == 4
    assert sorted(offset for offsets in backend.trained().values() for offset in offsets) == list(range(8))


async def test_a_stop_cuts_rollouts_off_and_they_come_again(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer
) -> None:
    tidied: list[int] = []

    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        if scenario["offset"] in (5, 6):
            try:
                if scenario["offset"] == 6:
                    while backend.newest() < 2:
                        await asyncio.sleep(0)
                    trainer.request_stop()
                await asyncio.Event().wait()
            finally:
                tidied.append(scenario["offset"])
        return make_group(0.0, 1.0)

    trainer = make_trainer(itertools.cycle(make_scenarios(20)), rollout_fn=rollout, num_rollout_workers=2)
    await trainer.train()
    assert sorted(tidied) == [5, 6]
    assert backend.trained() == {1: [0, 1], 2: [2, 3], 3: [4]}  # the last one is what was waiting
    assert read_progress(model)["unfinished_offsets"] == [5, 6]
    assert read_progress(model)["scenario_offset"] == 7
    assert trainer.state.done


@pytest.mark.parametrize(
    "how", ["in a rollout", "in a step", "in an evaluation", "from another thread", "by the state"]
)
async def test_a_stop_in_any_stage_ends_the_run(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer, how: str
) -> None:
    def stop(where: str) -> None:
        if where != how:
            return
        if how == "by the state":
            trainer.state.done = True
        else:
            trainer.request_stop()

    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        stop("in a rollout")
        if scenario["offset"] == 3:
            stop("by the state")
            thread = threading.Thread(target=stop, args=["from another thread"])
            thread.start()
            thread.join()
        return await roll_out(model, scenario, config)

    async def before_step(step: int) -> None:
        stop("in a step")

    async def evaluate(model: Model, step: int, config: Any) -> list[Any]:
        stop("in an evaluation")
        return []

    backend.before_step = before_step
    trainer = make_trainer(itertools.cycle(make_scenarios(5)), rollout_fn=rollout, eval_fn=evaluate)
    async with asyncio.timeout(10):
        await trainer.train()
    assert read_progress(model)["completed_eval_steps"] == [0]
    trained = [offset for offsets in backend.trained().values() for offset in offsets]
    progress = read_progress(model)
    assert (
        len(trained) + len(progress["unfinished_offsets"]) + trainer.state.discarded_stale_groups
        == (progress["scenario_offset"])
    )
    assert progress["training_step"] == backend.newest() == trainer.state.policy_version


async def test_cancelling_the_call_ends_everything_and_keeps_the_progress(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer
) -> None:
    is_training = asyncio.Event()

    async def before_step(step: int) -> None:
        if step == 2:
            is_training.set()
            await asyncio.Event().wait()

    backend.before_step = before_step
    before = asyncio.all_tasks()
    run = asyncio.create_task(make_trainer(8).train())
    await is_training.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert asyncio.all_tasks() == before
    progress = read_progress(model)
    assert (progress["training_step"], progress["batch"]) == (1, None)
    trained = backend.trained()[1]
    assert set(progress["unfinished_offsets"]) == set(range(progress["scenario_offset"])) - set(trained)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_first_signal_asks_and_the_second_cancels(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer, number: signal.Signals
) -> None:
    is_training = asyncio.Event()

    async def before_step(step: int) -> None:
        is_training.set()
        await asyncio.Event().wait()

    async def send() -> None:
        await is_training.wait()
        os.kill(os.getpid(), number)
        while not trainer.state.done:
            await asyncio.sleep(0)
        os.kill(os.getpid(), number)

    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    backend.before_step = before_step
    trainer = make_trainer(8)
    sender = asyncio.create_task(send())
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else asyncio.CancelledError):
        await trainer.train()
    await sender
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert read_progress(model)["training_step"] == 0


async def test_one_signal_stops_after_the_step(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer
) -> None:
    async def before_step(step: int) -> None:
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            while not trainer.state.done:
                await asyncio.sleep(0)

    backend.before_step = before_step
    trainer = make_trainer(itertools.cycle(make_scenarios(5)))
    await trainer.train()
    assert backend.newest() == 3  # which is what was waiting
    assert len(read_progress(model)["unfinished_offsets"]) > 0


async def test_signals_are_left_alone_on_request(make_trainer: MakeTrainer) -> None:
    seen: list[Any] = []

    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        seen.append(signal.getsignal(signal.SIGTERM))
        return make_group(0.0, 1.0)

    await make_trainer(2, rollout_fn=rollout).train(handle_signals=False)
    assert set(seen) == {signal.getsignal(signal.SIGTERM)}


async def test_a_stall_ends_with_a_report_of_every_part(
    model: Model, make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        if scenario["offset"] < 3:
            return make_group(0.0, 1.0)
        return await hang(model, scenario, config)

    with pytest.raises(PipelineStalledError, match=r"no progress for .* s \(limit: stall_timeout_s=0.5\)") as caught:
        await make_trainer(8, rollout_fn=rollout, stall_timeout_s=0.5).train()
    report = caught.value.report
    assert "server: answers as agent@1" in report
    assert "policy: version 1, next training step 1" in report
    assert "queue: 0 of 8 groups" in report
    assert "training: waiting for groups: 1 of at least 2 for" in report
    assert "worker 0: running the rollout of scenario" in report
    assert "waits in Event.wait" in report
    assert report in caplog.text
    assert read_progress(model)["unfinished_offsets"] == [2, 3, 4]


@pytest.mark.parametrize("kind", ["scenario", "step", "evaluation"])
async def test_a_stall_names_the_stage(backend: ScriptedBackend, make_trainer: MakeTrainer, kind: str) -> None:
    async def wait_if(where: str) -> None:
        if where == kind:
            await asyncio.Event().wait()

    async def generate() -> Any:
        for scenario in make_scenarios(4):
            yield scenario
        await wait_if("scenario")

    async def before_step(step: int) -> None:
        await wait_if("step")

    async def evaluate(model: Model, step: int, config: Any) -> list[Any]:
        await wait_if("evaluation")
        return []

    backend.before_step = before_step
    expected = {
        "scenario": "worker 0: waiting for the next scenario",
        "step": "training: training step 1 on 2 groups",
        "evaluation": "evaluation of step 0: running",
    }
    with pytest.raises(PipelineStalledError, match=expected[kind]):
        await make_trainer(generate(), eval_fn=evaluate, stall_timeout_s=0.5).train()


async def test_tokens_or_rows_are_progress(backend: ScriptedBackend, make_trainer: MakeTrainer) -> None:
    looks: list[int] = []

    async def work_done(model: Model) -> tuple[float, float]:
        looks.append(1)
        return (100.0 * min(len(looks), 4), 0.0 if len(looks) < 6 else float(min(len(looks), 8)))

    backend.work_done = work_done  # type: ignore[attr-defined]
    with pytest.raises(PipelineStalledError):
        await make_trainer(4, rollout_fn=hang, stall_timeout_s=0.5).train()
    assert len(looks) > 8  # each look that found something began the time anew


async def test_a_server_that_is_started_again_is_waited_for(
    backend: ScriptedBackend, make_trainer: MakeTrainer
) -> None:
    looks: list[int] = []

    def is_recovering(model: Model) -> bool:
        looks.append(1)
        return len(looks) < 4

    backend.is_recovering = is_recovering  # type: ignore[attr-defined]
    with pytest.raises(PipelineStalledError):
        await make_trainer(4, rollout_fn=hang, stall_timeout_s=0.1).train()
    assert len(looks) > 4


async def test_without_a_limit_nothing_is_a_stall(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(4, rollout_fn=hang, stall_timeout_s=None)
    run = asyncio.create_task(trainer.train())
    done, _ = await asyncio.wait([run], timeout=0.3)
    assert not done
    trainer.request_stop()
    await run


async def test_a_rollout_that_does_not_end_is_not_waited_for(make_trainer: MakeTrainer) -> None:
    release = asyncio.Event()

    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue  # as code that swallows what it must not
        return make_group(0.0, 1.0)

    trainer = make_trainer(4, rollout_fn=rollout, num_rollout_workers=1)
    run = asyncio.create_task(trainer.train())
    while trainer.state.scenario_offset < 1:
        await asyncio.sleep(0)
    trainer.request_stop()
    with pytest.raises(PipelineStalledError, match=r"did not end within 0\.3 s: rollouts"):
        await run
    release.set()
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0)


async def test_the_first_failure_is_raised_as_it_is(backend: ScriptedBackend, make_trainer: MakeTrainer) -> None:
    class Broken:
        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        await make_trainer(Broken()).train()
