"""Shapes that most of the package shares: messages, training settings as callers write them, training results.

Data only. How trajectories are built from messages is in `art.trajectories`.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

import pydantic
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_message_param import ChatCompletionMessageParam
from openai.types.chat.chat_completion_tool_param import ChatCompletionToolParam

logger = logging.getLogger(__name__)

Message: TypeAlias = Annotated[ChatCompletionMessageParam, pydantic.SkipValidation]
MessageOrChoice: TypeAlias = Message | Choice
Messages: TypeAlias = list[Message]
MessagesAndChoices: TypeAlias = list[MessageOrChoice]
Tools: TypeAlias = list[ChatCompletionToolParam]
Verbosity: TypeAlias = Literal[0, 1, 2]

__all__ = [
    "Choice",
    "LocalTrainResult",
    "Message",
    "MessageOrChoice",
    "Messages",
    "MessagesAndChoices",
    "ServerlessTrainResult",
    "Tools",
    "TrainConfig",
    "TrainResult",
    "TrainSFTConfig",
    "Verbosity",
]


# Settings that do exist, elsewhere: whoever gives them here means something by it, and must be told where they go.
_ELSEWHERE = {
    **dict.fromkeys(
        ("num_epochs", "epochs", "num_train_epochs", "groups_per_step"),
        "it belongs to the data set: `for batch in art.utils.iterate_dataset(data, groups_per_step=…, num_epochs=…)`",
    ),
    **dict.fromkeys(
        ("num_steps", "max_steps", "steps"),
        "one call trains one step: `for _ in range(await model.get_step(), …)`",
    ),
    **dict.fromkeys(
        ("rollouts_per_group", "num_generations", "trajectories_per_group"),
        "a group has as many rollouts as it is given: `art.TrajectoryGroup(rollout(…) for _ in range(…))`",
    ),
    "lr": "it is called learning_rate",
}
_MISSPELT_FROM = 0.85  # of difflib's ratio; nothing that older releases know is that near


class _TolerantConfig(pydantic.BaseModel):
    """Settings that ignore keywords they do not know, and say so; what must be a mistake is an error."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _name_ignored_keywords(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        ignored = [str(name) for name in values if name not in cls.model_fields]
        for name in ignored:
            if (hint := cls._what_it_should_be(name)) is not None:
                raise ValueError(f"{cls.__name__} has no setting {name!r}: {hint}")
        if "beta" in ignored:
            ignored.remove("beta")
            logger.warning(
                "%s: beta=%r has no effect, since there is no KL term in the loss; "
                "use kl_penalty_coef to keep the policy near its base model",
                cls.__name__,
                values["beta"],
            )
        if ignored:
            logger.warning(
                "%s ignores unknown settings: %s (known: %s)",
                cls.__name__,
                ", ".join(ignored),
                ", ".join(cls.model_fields),
            )
        return values

    @classmethod
    def _what_it_should_be(cls, name: str) -> str | None:
        similar = difflib.get_close_matches(name, list(cls.model_fields), n=1, cutoff=_MISSPELT_FROM)
        return f"did you mean {similar[0]}?" if similar else _ELSEWHERE.get(name)


class TrainConfig(_TolerantConfig):
    """Settings of one reinforcement-learning step.

    Unknown keywords are ignored with a warning, because scripts for older releases pass some. One that is misspelt, or
    belongs elsewhere, is an error.

    Attributes:
        learning_rate: Step size of the optimiser.
        kl_penalty_coef: Weight of the KL penalty to the reference policy, taken off the advantages; 0 for none.
        grad_accumulation_sequences: Packed rows per optimiser step; None leaves it to the backend.
    """

    learning_rate: float = 5e-6
    kl_penalty_coef: float = 0.0
    grad_accumulation_sequences: int | None = pydantic.Field(default=None, ge=1)


class TrainSFTConfig(_TolerantConfig):
    """Settings of supervised fine-tuning.

    Unknown keywords are treated as by `TrainConfig`.

    Attributes:
        learning_rate: Step size of the optimiser, or one for each batch in order.
        batch_size: Trajectories per optimiser step, or "auto" for the backend's choice.
    """

    learning_rate: float | list[float] = 5e-5
    batch_size: int | Literal["auto"] = "auto"


@dataclass
class TrainResult:
    """What a training step gave.

    Attributes:
        step: The step after training.
        metrics: Averages over the step, by metric name.
    """

    step: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class LocalTrainResult(TrainResult):
    """What a training step on this machine gave.

    Attributes:
        checkpoint_path: Folder of the step's checkpoint, or None when none was kept.
    """

    checkpoint_path: str | None = None


@dataclass
class ServerlessTrainResult(TrainResult):
    """What a training step on a remote service gave.

    Attributes:
        artifact_name: The service's name for the step's weights, or None.
    """

    artifact_name: str | None = None
