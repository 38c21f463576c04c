"""What a rollout leaves behind: `Trajectory`, `TrajectoryGroup`, `History`. Data only.

Running rollouts is in `art.gather`, their shared progress in `art.gather_context`.
"""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import AsyncGenerator, Awaitable, Generator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any, TypeAlias, overload

import pydantic

from art.conversation import (
    CheckedMessages,
    CheckedTools,
    get_messages,
    message_for_logging,
    refuse_misnamed_fields,
)
from art.owned_tasks import close_unstarted
from art.pending_group import PendingTrajectoryGroup
from art.types import Messages

__all__ = ["History", "MetadataValue", "PydanticException", "Trajectory", "TrajectoryGroup", "get_messages"]

MetadataValue: TypeAlias = float | int | str | bool | None


def _refuse_text(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(f"a metric is a number, not the text {value!r}; put text into metadata")
    return value


MetricValue: TypeAlias = Annotated[float | int | bool, pydantic.BeforeValidator(_refuse_text)]


class PydanticException(pydantic.BaseModel):
    """An exception as data.

    Attributes:
        type: Text of its class, as in "<class 'ValueError'>".
        message: Text of the exception.
        traceback: Formatted traceback, or only the last line for one that was never raised.
    """

    type: str
    message: str
    traceback: str

    @classmethod
    def from_exception(cls, error: BaseException) -> PydanticException:
        """Describe an exception, including its causes."""
        return cls(type=str(type(error)), message=str(error), traceback="".join(traceback.format_exception(error)))


class History(pydantic.BaseModel):
    """One conversation: what was said, and the tools that were on offer.

    Attributes:
        messages_and_choices: In order; a Choice is an answer of the trained model, a message is context.
        tools: In OpenAI's form (`{"type": "function", "function": {…}}`) or as bare functions; kept as given.
    """

    messages_and_choices: CheckedMessages
    tools: CheckedTools | None = None

    _check_names = pydantic.model_validator(mode="before")(refuse_misnamed_fields)

    def messages(self) -> Messages:
        """Give the conversation as messages, Choices turned into assistant messages."""
        return get_messages(self.messages_and_choices)


class Trajectory(pydantic.BaseModel):
    """One rollout: conversations, reward, and whatever was measured or noted on the way.

    Attributes:
        messages_and_choices: The conversation; a Choice is an answer of the trained model, a message is context.
        tools: The tools on offer, in OpenAI's form or as bare functions; kept as given.
        additional_histories: Further conversations of the same rollout, which share its reward.
        reward: What training maximises.
        initial_policy_version: Step that was served when the rollout began, or None.
        final_policy_version: Step that was served when it ended, or None.
        metrics: Numbers to average and log.
        metadata: Facts that identify the rollout.
        logs: Free text.
        start_time: When the object was made, in local time; not part of dumps.
    """

    messages_and_choices: CheckedMessages = []
    tools: CheckedTools | None = None
    additional_histories: list[History] = []
    reward: float = 0.0
    initial_policy_version: int | None = None
    final_policy_version: int | None = None
    metrics: dict[str, MetricValue] = {}
    metadata: dict[str, MetadataValue] = {}
    logs: list[str] = []
    start_time: datetime = pydantic.Field(default_factory=datetime.now, exclude=True)

    _check_names = pydantic.model_validator(mode="before")(refuse_misnamed_fields)

    def log(self, message: str) -> None:
        """Append a line to `logs`."""
        self.logs.append(message)

    def finish(self) -> Trajectory:
        """Set `metrics["duration"]` to the seconds since `start_time`, and give the trajectory back."""
        self.metrics["duration"] = (datetime.now(self.start_time.tzinfo) - self.start_time).total_seconds()
        return self

    @asynccontextmanager
    async def track_duration(self, metric_name: str) -> AsyncGenerator[None, None]:
        """Add the seconds that the block takes to `metrics["{metric_name}_duration"]`, also when it fails."""
        started = time.monotonic()
        try:
            yield
        finally:
            key = f"{metric_name}_duration"
            self.metrics[key] = self.metrics.get(key, 0.0) + time.monotonic() - started

    def messages(self) -> Messages:
        """Give the conversation as messages, Choices turned into assistant messages."""
        return get_messages(self.messages_and_choices)

    def for_logging(self) -> dict[str, Any]:
        """Give a plain dict for logs: each message carries `trainable`, which is True for a Choice."""
        return {
            "reward": self.reward,
            "initial_policy_version": self.initial_policy_version,
            "final_policy_version": self.final_policy_version,
            "metrics": self.metrics,
            "metadata": self.metadata,
            "messages": [message_for_logging(entry) for entry in self.messages_and_choices],
            "tools": self.tools,
            "logs": self.logs,
        }

    def __str__(self) -> str:
        return f"Trajectory(reward={self.reward}, metrics={self.metrics}, metadata={self.metadata})"


class TrajectoryGroup(pydantic.BaseModel):
    """Rollouts of one scenario, whose rewards are compared with each other.

    Made of awaitables, the constructor gives an awaitable of the group instead: awaiting it runs them all at once.
    A finished group can be awaited too and gives itself, so nobody has to ask whether there was anything to run.

    Attributes:
        trajectories: The rollouts that succeeded.
        exceptions: The failures of the others.
        metadata: Facts about the scenario.
        metrics: Numbers about the group as a whole.
        logs: Free text.
    """

    trajectories: list[Trajectory]
    exceptions: list[PydanticException] = []
    metadata: dict[str, MetadataValue] = {}
    metrics: dict[str, MetricValue] = {}
    logs: list[str] = []

    @overload
    def __new__(
        cls,
        trajectories: Iterable[Trajectory | BaseException],
        *,
        exceptions: Sequence[BaseException] = (),
        metadata: dict[str, MetadataValue] | None = None,
        metrics: dict[str, float | int | bool] | None = None,
        logs: list[str] | None = None,
    ) -> TrajectoryGroup: ...

    @overload
    def __new__(  # type: ignore[misc]  # what is not finished is not yet a group
        cls,
        trajectories: Iterable[Awaitable[Trajectory]],
        *,
        exceptions: Sequence[BaseException] = (),
        metadata: dict[str, MetadataValue] | None = None,
        metrics: dict[str, float | int | bool] | None = None,
        logs: list[str] | None = None,
    ) -> Awaitable[TrajectoryGroup]: ...

    def __new__(  # type: ignore[misc]  # an awaitable of the class stands in for it
        cls,
        trajectories: Iterable[Trajectory | BaseException] | Iterable[Awaitable[Trajectory]] | None = None,
        *,
        exceptions: Sequence[BaseException] = (),
        metadata: dict[str, MetadataValue] | None = None,
        metrics: dict[str, float | int | bool] | None = None,
        logs: list[str] | None = None,
    ) -> TrajectoryGroup | Awaitable[TrajectoryGroup]:
        items = None if trajectories is None else _as_items(trajectories)
        if items and any(inspect.isawaitable(item) for item in items):
            given = list(exceptions)

            def build(finished: list[Any], failed: list[BaseException]) -> TrajectoryGroup:
                return cls(finished, exceptions=given + failed, metadata=metadata, metrics=metrics, logs=logs)

            return PendingTrajectoryGroup(items, trajectory_type=Trajectory, build=build)
        group = super().__new__(cls)
        if items is not None:  # `trajectories` may be an iterator, which `__init__` could not read again
            group.__dict__["_items"] = items
        return group

    def __init__(
        self,
        trajectories: Iterable[Trajectory | BaseException] | Iterable[Awaitable[Trajectory]],
        *,
        exceptions: Sequence[BaseException] = (),
        metadata: dict[str, MetadataValue] | None = None,
        metrics: dict[str, float | int | bool] | None = None,
        logs: list[str] | None = None,
    ) -> None:
        """Sort what was given into trajectories and exceptions.

        Args:
            trajectories: Trajectories and exceptions, or awaitables of trajectories (see the class).
            exceptions: Further failures, put first.
            metadata: Facts about the scenario.
            metrics: Numbers about the group as a whole.
            logs: Free text.
        """
        items = self.__dict__.pop("_items", None)
        if items is None:
            items = _as_items(trajectories)
        failures = [*exceptions, *(item for item in items if isinstance(item, BaseException))]
        super().__init__(
            trajectories=[item for item in items if not isinstance(item, BaseException)],
            exceptions=[_exception_as_data(failure) for failure in failures],
            metadata=metadata or {},
            metrics=metrics or {},
            logs=logs or [],
        )

    def log(self, message: str) -> None:
        """Append a line to `logs`."""
        self.logs.append(message)

    def __await__(self) -> Generator[Any, None, TrajectoryGroup]:
        yield from ()
        return self

    def __iter__(self) -> Iterator[Trajectory]:  # type: ignore[override]  # pydantic iterates over fields
        return iter(self.trajectories)

    def __len__(self) -> int:
        return len(self.trajectories)


def _as_items(trajectories: Any) -> list[Any]:
    """List what a group is made of; what are no rollouts, though they could give some, are told apart."""
    if inspect.isawaitable(trajectories):
        close_unstarted([trajectories])
        raise TypeError("a TrajectoryGroup takes several rollouts: art.TrajectoryGroup(rollout(…) for _ in range(…))")
    if inspect.isroutine(trajectories):
        raise TypeError(_not_called(trajectories))
    if isinstance(trajectories, Trajectory):
        raise TypeError("a TrajectoryGroup takes a list of trajectories: art.TrajectoryGroup([trajectory])")
    items = list(trajectories)
    for item in items:
        if inspect.isroutine(item):
            raise TypeError(_not_called(item))
    return items


def _not_called(function: Any) -> str:
    name = getattr(function, "__name__", "rollout")
    return f"{name} is a function: call it, as in art.TrajectoryGroup({name}(…) for _ in range(…))"


def _exception_as_data(failure: Any) -> Any:
    return PydanticException.from_exception(failure) if isinstance(failure, BaseException) else failure
