"""Make one rollout function out of another."""

from __future__ import annotations

import asyncio

from art.gather_context import find_fatal_error
from art.model.answers import noting_answers
from art.owned_tasks import result_or_error, run_all
from art.pipeline_trainer.facts import note_adapter_names
from art.pipeline_trainer.types import AnyTrainableModel, ConfigT, RolloutFn, ScenarioT, SingleRolloutFn
from art.trajectories import Trajectory, TrajectoryGroup


def make_group_rollout_fn(
    single_rollout_fn: SingleRolloutFn[ScenarioT, ConfigT], n: int = 4
) -> RolloutFn[ScenarioT, ConfigT]:
    """Make a function that runs a rollout several times at once and gives the group.

    Failures are kept in the group's `exceptions`, except that of a server or trainer that is gone, which is raised.

    Args:
        single_rollout_fn: Runs one rollout.
        n: How often; 0 or less gives an empty group.
    """

    async def run_one(model: AnyTrainableModel, scenario: ScenarioT, config: ConfigT) -> Trajectory | Exception:
        with noting_answers() as answers:
            outcome: object = await result_or_error(single_rollout_fn(model, scenario, config))
        if isinstance(outcome, Exception):
            fatal = find_fatal_error(outcome)
            if fatal is not None:
                raise fatal
            return outcome
        if not isinstance(outcome, Trajectory):
            return TypeError(f"the rollout function returned a {type(outcome).__name__}, not a Trajectory")
        note_adapter_names([outcome], answers.counts)
        return outcome

    async def rollout(model: AnyTrainableModel, scenario: ScenarioT, config: ConfigT) -> TrajectoryGroup:
        outcomes = await run_all([asyncio.ensure_future(run_one(model, scenario, config)) for _ in range(n)])
        return TrajectoryGroup(outcomes)

    return rollout
