"""Rollouts of a pipeline: versions, names, staleness, failures."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from art.errors import LocalServingUnavailableError, TooManyRolloutFailuresError
from art.metrics import MetricsBuilder
from art.pipeline_trainer import rollout_stage
from art.trajectories import TrajectoryGroup
from tests.support.scripted_pipeline import (
    Model,
    ScriptedBackend,
    make_group,
    make_scenarios,
    read_history,
    roll_out,
)
from tests.unit.pipeline_trainer.conftest import MakeTrainer

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(20)]


async def test_every_trajectory_tells_its_versions_and_names(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer
) -> None:
    groups: list[TrajectoryGroup] = []

    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        before = model.get_inference_name()
        while backend.served_step < scenario["offset"] // 2:
            await asyncio.sleep(0)
        assert model.get_inference_name() == before  # it stays what it was though a step was trained meanwhile
        groups.append(make_group(0.0, 1.0))
        return groups[-1]

    await make_trainer(8, rollout_fn=rollout, num_rollout_workers=4).train()
    assert len(groups) == 8
    for group in groups:
        (versions,) = {(t.initial_policy_version, t.final_policy_version) for t in group}
        assert versions[0] is not None
        assert versions[1] is not None
        assert versions[0] <= versions[1] <= versions[0] + 4
        assert {t.metadata["adapter_names"] for t in group} == {f"agent@{versions[0]}"}
        assert "scenario_id" in group.metadata
        assert not [key for key in group.metadata if key.startswith("_art")]
    assert max(version for group in groups for t in group if (version := t.final_policy_version) is not None) > 0
    assert set(backend.leases.values()) == {0}


async def test_without_leases_the_name_is_that_of_the_start(
    backend: ScriptedBackend, make_trainer: MakeTrainer
) -> None:
    groups: list[TrajectoryGroup] = []

    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        groups.append(await roll_out(model, scenario, config))
        return groups[-1]

    backend.adapter_lease = None  # type: ignore[assignment,method-assign]
    await make_trainer(4, rollout_fn=rollout, max_steps_off_policy=0).train()
    for group in groups:
        assert {t.metadata["adapter_names"] for t in group} == {f"agent@{group.trajectories[0].initial_policy_version}"}
    assert len(groups) == 4


async def test_rollouts_go_on_while_a_step_is_trained(backend: ScriptedBackend, make_trainer: MakeTrainer) -> None:
    is_training, three_more = asyncio.Event(), asyncio.Event()
    meanwhile: list[int] = []

    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        if scenario["offset"] >= 2:
            await is_training.wait()
            meanwhile.append(scenario["offset"])
            if len(meanwhile) == 3:
                three_more.set()
        return await roll_out(model, scenario, config)

    async def before_step(step: int) -> None:
        is_training.set()
        await three_more.wait()

    backend.before_step = before_step
    await make_trainer(12, rollout_fn=rollout).train()
    assert sorted(meanwhile) == list(range(2, 12))


async def test_groups_that_are_too_old_are_counted_and_not_trained(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer
) -> None:
    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        if scenario["offset"] == 0:  # takes until step 2 is served: with at most 1 step allowed, that is too long
            while backend.served_step < 2:
                await asyncio.sleep(0)
        return make_group(0.0, 1.0)

    trainer = make_trainer(9, rollout_fn=rollout, max_steps_off_policy=1)
    await trainer.train()
    trained = [offset for offsets in backend.trained().values() for offset in offsets]
    assert 0 not in trained
    assert trainer.state.discarded_stale_groups == 9 - len(trained) >= 1
    rows = [row for row in read_history(model) if "train/steps_off_policy" in row]
    assert rows[-1]["train/discarded_stale_groups"] == trainer.state.discarded_stale_groups
    assert max(row["pipeline/max_steps_off_policy"] for row in rows) <= 2


@pytest.mark.parametrize("limit", [0, 1])
async def test_rollouts_begin_while_a_step_trains_only_where_they_may_be_older_than_it(
    backend: ScriptedBackend, make_trainer: MakeTrainer, limit: int
) -> None:
    begun_in_training: list[int] = []
    is_training = False

    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        if is_training:
            begun_in_training.append(scenario["offset"])
        return await roll_out(model, scenario, config)

    async def before_step(step: int) -> None:
        nonlocal is_training
        is_training = True
        if limit:
            while len(begun_in_training) <= 2:
                await asyncio.sleep(0)
        else:
            for _ in range(100):
                await asyncio.sleep(0)
        is_training = False

    backend.before_step = before_step
    scenarios = itertools.cycle(make_scenarios(3))
    await make_trainer(
        scenarios, rollout_fn=rollout, max_steps_off_policy=limit, max_steps=1, queue_maxsize=1000
    ).train()
    assert backend.newest() == 1
    # Each of the two workers may have been about to begin when the step began.
    assert (len(begun_in_training) > 2) is (limit > 0)


async def test_a_failed_rollout_is_tried_again_and_the_run_goes_on(
    backend: ScriptedBackend, make_trainer: MakeTrainer
) -> None:
    tries: dict[int, int] = {}

    async def rollout(model: Model, scenario: Any, config: Any) -> Any:
        offset = scenario["offset"]
        tries[offset] = tries.get(offset, 0) + 1
        if offset == 1 and tries[1] == 1:
            raise ValueError("this time")
        if offset == 2:
            raise ValueError("every time")
        if offset == 3 and tries[3] == 1:
            return TrajectoryGroup([RuntimeError("all of it")])
        if offset == 4:
            return "no group"
        return make_group(0.0, 1.0)

    await make_trainer(7, rollout_fn=rollout).train()
    assert sorted(offset for offsets in backend.trained().values() for offset in offsets) == [0, 1, 3, 5, 6]
    assert tries == {0: 1, 1: 2, 2: 2, 3: 2, 4: 2, 5: 1, 6: 1}


async def test_so_many_failures_in_a_row_end_the_run_with_the_first(
    backend: ScriptedBackend, make_trainer: MakeTrainer
) -> None:
    calls: list[int] = []

    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        calls.append(scenario["offset"])
        if scenario["offset"] < 2:
            return make_group(0.0, 1.0)
        while backend.served_step < 1:
            await asyncio.sleep(0)
        raise ConnectionError(f"refused {len(calls)}")

    trainer = make_trainer(itertools.cycle(make_scenarios(100)), rollout_fn=rollout, max_failed_groups=5)
    with pytest.raises(TooManyRolloutFailuresError, match=r"5 groups in a row failed.*refused") as caught:
        await trainer.train()
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert len(caught.value.failures) == 5
    assert len(calls) <= 2 + 5 + 2  # two that worked, five that count, and those that ran beside them
    assert backend.trained() == {1: [0, 1]}


async def test_groups_that_failed_as_data_count_too(make_trainer: MakeTrainer) -> None:
    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        return TrajectoryGroup([ValueError("lost")])

    with pytest.raises(TooManyRolloutFailuresError, match=r"all 4 groups of the run failed.*ValueError.*lost"):
        await make_trainer(2, rollout_fn=rollout).train()


async def test_a_server_that_was_given_up_ends_the_run_with_one_error(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer
) -> None:
    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        if scenario["offset"] == 3:
            raise ConnectionError("refused") from LocalServingUnavailableError("killed by SIGKILL", facts={"pid": 7})
        return await roll_out(model, scenario, config)

    with pytest.raises(LocalServingUnavailableError, match="SIGKILL") as caught:
        await make_trainer(20, rollout_fn=rollout).train()
    assert caught.value.facts == {"pid": 7}
    assert 3 in (model.read_state() or {})["_pipeline_trainer"]["unfinished_offsets"]


async def test_a_server_that_is_given_up_while_everybody_waits_ends_the_run(
    backend: ScriptedBackend, make_trainer: MakeTrainer
) -> None:
    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        backend.failure = LocalServingUnavailableError("it hangs")
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(LocalServingUnavailableError, match="it hangs"):
        await make_trainer(rollout_fn=rollout).train()


async def test_a_rollout_that_takes_too_long_has_failed(backend: ScriptedBackend, make_trainer: MakeTrainer) -> None:
    is_cancelled: list[bool] = []

    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        if scenario["offset"] == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                is_cancelled.append(True)
                raise
        return make_group(0.0, 1.0)

    await make_trainer(5, rollout_fn=rollout, rollout_timeout_s=0.05, max_scenario_attempts=1).train()
    assert backend.trained() == {1: [0, 2], 2: [3, 4]}
    assert is_cancelled == [True]


async def test_a_cancellation_inside_a_rollout_is_a_failure(
    backend: ScriptedBackend, make_trainer: MakeTrainer
) -> None:
    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        if scenario["offset"] == 1:
            raise asyncio.CancelledError
        return make_group(0.0, 1.0)

    await make_trainer(5, rollout_fn=rollout, max_scenario_attempts=1).train()
    assert backend.trained() == {1: [0, 2], 2: [3, 4]}


async def test_rollouts_run_in_the_metrics_context_of_training(make_trainer: MakeTrainer) -> None:
    contexts: set[str] = set()

    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        contexts.add(MetricsBuilder.get_active().cost_context)
        return make_group(0.0, 1.0)

    await make_trainer(2, rollout_fn=rollout).train()
    assert contexts == {"train"}


async def test_rollouts_that_fail_while_the_server_is_started_again_come_again_and_do_not_count(
    backend: ScriptedBackend, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_stage, "FAILURE_PAUSE_S", 0.01)
    looks = 0
    failed: list[int] = []

    def is_recovering(model: Model) -> bool:
        nonlocal looks
        looks += len(failed) >= 3
        return len(failed) > 0 and looks < 20

    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        if looks < 20 and scenario["offset"] >= 2:
            failed.append(scenario["offset"])  # as with a client that knows nothing of the server's troubles
            raise ConnectionError("refused")
        return make_group(0.0, 1.0)

    backend.is_recovering = is_recovering  # type: ignore[attr-defined]
    trainer = make_trainer(
        8, rollout_fn=rollout, num_rollout_workers=3, max_scenario_attempts=1, max_failed_groups=2, stall_timeout_s=10.0
    )
    await trainer.train()
    assert sorted(offset for offsets in backend.trained().values() for offset in offsets) == list(range(8))
    assert len(failed) == 3  # each worker's once: they wait


async def test_a_worker_whose_rollouts_fail_does_not_fail_in_a_loop_where_a_server_may_be_about_to_come_back(
    backend: ScriptedBackend, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(delay_s: float, *args: Any) -> None:
        if delay_s == 12.5:
            pauses.append(delay_s)
        await real_sleep(0)

    real_sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(rollout_stage, "FAILURE_PAUSE_S", 12.5)
    backend.is_recovering = lambda model: False  # type: ignore[attr-defined]

    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        raise ConnectionError("refused")

    with pytest.raises(TooManyRolloutFailuresError):
        await make_trainer(20, rollout_fn=rollout, num_rollout_workers=1, max_failed_groups=4).train()
    assert len(pauses) == 4
