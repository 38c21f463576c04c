"""The kinds of functions that a pipeline is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

from art.model import TrainableModel
from art.trajectories import Trajectory, TrajectoryGroup

ScenarioT = TypeVar("ScenarioT", bound=dict[str, Any])
ConfigT = TypeVar("ConfigT")

ScalarMetadataValue: TypeAlias = float | int | str | bool | None
AnyTrainableModel: TypeAlias = TrainableModel[Any, Any]
EvalItems: TypeAlias = list[Trajectory | TrajectoryGroup]

RolloutFn = Callable[[AnyTrainableModel, ScenarioT, ConfigT], Awaitable[TrajectoryGroup]]
SingleRolloutFn = Callable[[AnyTrainableModel, ScenarioT, ConfigT], Awaitable[Trajectory]]
EvalFn = Callable[[AnyTrainableModel, int, ConfigT], Awaitable[EvalItems | dict[str, EvalItems]]]
