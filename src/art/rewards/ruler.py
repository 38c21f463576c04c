"""RULER: have a language model compare the trajectories of a group and score them.

What the judge is told stands in `art.rewards.ruler_prompt`.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import logging
import math
from typing import Any

from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from art.conversation import get_messages
from art.errors import ConfigurationError, DataError, JudgeError, MissingDependencyError
from art.metrics import MetricsBuilder
from art.rewards.ruler_prompt import DEFAULT_RUBRIC as DEFAULT_RUBRIC
from art.rewards.ruler_prompt import shared_length, system_prompt, user_prompt
from art.trajectories import Trajectory, TrajectoryGroup

logger = logging.getLogger(__name__)

COST_SOURCE = "judge/ruler"


class TrajectoryScore(BaseModel):
    """What the judge says of one trajectory."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # some judges write the id as a number

    trajectory_id: str = Field(description="The id of the trajectory that is scored.")
    explanation: str = Field(description="Why it gets this score, in a few words.")
    score: float = Field(description="How well the agent did, from 0 to 1.")


class Response(BaseModel):
    """The judge's answer."""

    scores: list[TrajectoryScore] = Field(description="One entry for each trajectory.")


async def ruler(
    message_lists: list[list[ChatCompletionMessageParam]],
    judge_model: str = "openai/o3",
    extra_litellm_params: dict[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    tools: list[Any] | None = None,
    *,
    debug: bool = False,
) -> list[TrajectoryScore]:
    """Have a judge score trajectories that share a goal, relative to each other.

    Messages that all trajectories begin with are sent once. Where all are the same, one is sent, and all get its score.

    Args:
        message_lists: The messages of each trajectory.
        judge_model: The judge, as litellm names it.
        extra_litellm_params: More arguments of `litellm.acompletion`, such as `api_base`, `api_key` or `timeout`
            (litellm's own time-out is long).
        rubric: What makes a trajectory good.
        tools: The tools that the agent could use.
        debug: Log the judge's answer.

    Returns:
        A score for each trajectory, in their order. Scores are the judge's own, also outside 0 to 1.

    Raises:
        JudgeError: The judge's answer cannot be used, nor the one when it was asked a second time; a `ValueError`
            too. Errors of the call itself are litellm's.
    """
    conversations = [get_messages(list(messages)) for messages in message_lists]
    if not conversations:
        return []
    shared = shared_length(conversations)
    are_same = all(len(conversation) == shared for conversation in conversations)
    if are_same and len(conversations) > 1:
        logger.info(
            "RULER: all %d trajectories of the group are the same, so all get the same score", len(conversations)
        )
    shown = conversations[:1] if are_same else conversations
    prompt = user_prompt(shown, tools, shared=0 if are_same else shared)
    ask = functools.partial(
        _ask,
        system_prompt(rubric),
        prompt,
        model=judge_model,
        extra_params=extra_litellm_params or {},
        wanted=len(shown),
        debug=debug,
    )
    try:
        scores = await ask()
    except JudgeError as err:
        logger.warning("RULER: the judge is asked a second time: %s", err)
        scores = await ask()
    if are_same:
        first = scores[0]
        return [first.model_copy(update={"trajectory_id": str(n + 1)}) for n in range(len(conversations))]
    return scores


async def ruler_score_group(
    group: TrajectoryGroup,
    judge_model: str = "openai/o3",
    extra_litellm_params: dict[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    *,
    swallow_exceptions: bool = False,
    debug: bool = False,
) -> TrajectoryGroup | None:
    """Give a copy of a group whose rewards are a judge's scores; made for `after_each` of `gather_trajectory_groups`.

    Each trajectory keeps its former reward in `metrics["independent_reward"]`, has the score in
    `metrics["ruler_score"]` and the judge's explanation in its logs. Everything else of the group stays.

    Args:
        group: Rollouts of one scenario; the tools of the first one are shown to the judge.
        judge_model: As in `ruler`, like the other arguments.
        extra_litellm_params: As in `ruler`.
        rubric: As in `ruler`.
        swallow_exceptions: Give None where the judge fails, so that a gather drops the group and goes on.
        debug: As in `ruler`.

    Raises:
        DataError: A trajectory has additional histories, which the judge cannot be shown; a `ValueError` too.
        JudgeError: The judge's answer cannot be used. Errors of the call itself are litellm's.
    """
    if any(trajectory.additional_histories for trajectory in group.trajectories):
        raise DataError("RULER judges trajectories of one conversation; one of this group has additional_histories")
    tools = group.trajectories[0].tools if group.trajectories else None
    try:
        scores = await ruler(
            [trajectory.messages() for trajectory in group.trajectories],
            judge_model,
            extra_litellm_params,
            rubric,
            tools,
            debug=debug,
        )
    except Exception as err:
        if not swallow_exceptions:
            raise
        logger.warning(
            "RULER: the judge failed, its group is dropped: judge=%s error=%r", judge_model, err, exc_info=debug
        )
        return None
    return group.model_copy(
        update={
            "trajectories": [_scored(*pair) for pair in zip(group.trajectories, scores, strict=True)],
            "exceptions": list(group.exceptions),
            "metadata": dict(group.metadata),
            "metrics": dict(group.metrics),
            "logs": list(group.logs),
        }
    )


def _scored(trajectory: Trajectory, score: TrajectoryScore) -> Trajectory:
    own_metrics = {"independent_reward": trajectory.reward, "ruler_score": score.score}
    return trajectory.model_copy(
        update={
            "messages_and_choices": list(trajectory.messages_and_choices),
            "reward": score.score,
            "metrics": {**trajectory.metrics, **own_metrics},
            "metadata": dict(trajectory.metadata),
            "logs": [*trajectory.logs, f"RULER explanation: {score.explanation}"],
        }
    )


async def _ask(
    task: str, prompt: str, *, model: str, extra_params: dict[str, Any], wanted: int, debug: bool
) -> list[TrajectoryScore]:
    litellm = await _import_litellm()
    messages = [{"role": "system", "content": task}, {"role": "user", "content": prompt}]
    call = {"model": model, "messages": messages, "response_format": Response, "caching": False, **extra_params}
    response = await litellm.acompletion(**call)
    _record_cost(response, model)
    if not response.choices:
        raise JudgeError(f"the judge {model} gave no answer: its response has no choices", answer="")
    choice = response.choices[0]
    if not choice.message.content:
        raise JudgeError(
            f"the judge {model} gave no text (finish reason {choice.finish_reason!r}); where it ran out of "
            "tokens, raise the limit in extra_litellm_params",
            answer="",
        )
    answer = str(choice.message.content)
    if debug:
        logger.info("RULER: the judge answered %s", answer)
    return _parse(answer, wanted=wanted)


async def _import_litellm() -> Any:
    try:
        # In a thread: the import takes seconds, and rollouts are under way.
        return await asyncio.to_thread(importlib.import_module, "litellm")
    except ImportError as err:
        raise MissingDependencyError("litellm", needed_for="RULER", extra=None) from err


def _record_cost(response: Any, judge_model: str) -> None:
    provider, slash, model_name = judge_model.partition("/")
    if not slash:
        return
    try:
        builder = MetricsBuilder.get_active()
    except LookupError:
        return
    try:
        builder.add_response_cost(COST_SOURCE, response, provider=provider, model_name=model_name)
    except ConfigurationError as err:
        logger.debug("RULER: cost of the judge not recorded: %s", err)


def _parse(answer: str, *, wanted: int) -> list[TrajectoryScore]:
    """Read the scores and put them into the order of the trajectories."""
    try:
        scores = Response.model_validate_json(answer).scores
    except ValidationError as err:
        raise JudgeError(f"the judge's answer is not in the form asked for: {err}", answer=answer) from err
    by_id = {score.trajectory_id.strip(): score for score in scores}
    ids = [str(number + 1) for number in range(wanted)]
    if len(scores) != wanted or set(by_id) != set(ids):
        given = ", ".join(score.trajectory_id for score in scores)
        raise JudgeError(f"the judge was to score the ids 1 to {wanted} once each; it scored: {given}", answer=answer)
    if not all(math.isfinite(score.score) for score in scores):
        raise JudgeError("the judge gave a score that is not a number", answer=answer)
    return [by_id[each] for each in ids]
