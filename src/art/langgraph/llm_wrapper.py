"""The two functions that scripts use; see the package."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from art.errors import MissingDependencyError
from art.langgraph.rollout import Rollout
from art.model import Model
from art.trajectories import Trajectory

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T", bound=Trajectory)

SAMPLING_TEMPERATURE = 1.0
"""Training compares logprobs at this temperature."""
KEPT_SETTINGS = frozenset(
    {"extra_body", "max_completion_tokens", "max_retries", "max_tokens", "seed", "stop", "stop_sequences", "timeout"}
)


def wrap_rollout(model: Model[Any, Any], fn: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Make a rollout record its agent's conversations.

    The function returned runs `fn` and puts what `init_chat_model`'s model was asked and answered into the trajectory
    that `fn` returns: the first conversation as its messages and tools, others as additional histories. Calls of other
    models, and of other clients, are left out.

    Args:
        model: The model that the agent uses; each call asks for its newest served step.
        fn: An async function that returns a Trajectory.

    Raises:
        TypeError: Later, when `fn` returns something else.
    """

    @functools.wraps(fn)
    async def rollout(*args: P.args, **kwargs: P.kwargs) -> T:
        with Rollout(model) as recorded:
            trajectory = await fn(*args, **kwargs)
        if not isinstance(trajectory, Trajectory):
            raise TypeError(f"a wrapped rollout must return a Trajectory, got a {type(trajectory).__name__}")
        if not recorded.move_conversations_to(trajectory):
            logger.warning(
                "a wrapped rollout of %s did not use the model of art.langgraph.init_chat_model, "
                "or used it in a thread that does not share its context: nothing was recorded",
                model.name,
            )
        return trajectory

    return rollout


def init_chat_model(
    model: Any = None,
    *,
    model_provider: str | None = None,
    configurable_fields: Any = None,
    config_prefix: str | None = None,
    **kwargs: Any,
) -> Any:
    """Give a LangChain chat model that asks the model being trained, in place of LangChain's function of this name.

    It may be made inside a wrapped rollout or once for all of them; each call goes to the model of the rollout that
    it happens in. It is a `ChatOpenAI`, so tools, structured output and streaming work as with that.

    Args:
        model: Ignored, like the other named ones: the model is that of the rollout.
        model_provider: Ignored.
        configurable_fields: Ignored.
        config_prefix: Ignored.
        **kwargs: `max_tokens`, `max_completion_tokens`, `stop`, `seed`, `timeout`, `max_retries` and `extra_body`
            count; others are ignored. Answers are sampled at temperature 1, as training needs it.

    Raises:
        MissingDependencyError: langchain-openai is not installed.
    """
    try:
        from art.langgraph.chat_model import RolloutChatModel
    except ModuleNotFoundError as err:
        package = (err.name or "langchain_openai").partition(".")[0]
        raise MissingDependencyError(package, needed_for="art.langgraph", extra="langgraph") from err
    ignored = sorted(set(kwargs) - KEPT_SETTINGS)
    if ignored:
        logger.info("init_chat_model ignores %s: the model and its sampling are those of training", ", ".join(ignored))
    kept = {name: value for name, value in kwargs.items() if name in KEPT_SETTINGS}
    return RolloutChatModel(temperature=SAMPLING_TEMPERATURE, **kept)
