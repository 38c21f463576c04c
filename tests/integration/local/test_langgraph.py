"""Rollouts through LangChain's chat model: sampled by the real server, trained, and sampled again at the new step."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import art
from art.langgraph import init_chat_model, wrap_rollout
from art.types import Choice
from tests.integration.local.conftest import SharedRun
from tests.support.local_run import ANSWER_TOKENS

pytestmark = [pytest.mark.integration]

ROW_TOKENS = 512


async def rollout(reward: float) -> art.Trajectory:
    llm = init_chat_model(max_tokens=ANSWER_TOKENS, extra_body={"ignore_eos": True})
    conversation: list[Any] = [("user", "say yes or no please")]
    first = await llm.ainvoke(conversation)
    conversation += [first, ("user", "again")]
    streamed = "".join([chunk.text async for chunk in llm.astream(conversation)])
    conversation += [("assistant", streamed), ("user", "and again")]
    await asyncio.to_thread(llm.invoke, conversation)  # as from a blocking node
    return art.Trajectory(reward=reward, metadata={"asked": first.response_metadata["model_name"]})


def test_rollouts_of_a_chat_model_are_trained_and_follow_the_served_step(shared: SharedRun) -> None:
    pytest.importorskip("langchain_openai")

    async def run() -> None:
        wrapped = wrap_rollout(shared.model, rollout)
        before = await shared.model.get_step()
        group = await art.TrajectoryGroup(wrapped(index / 4) for index in range(4))
        for trajectory in group:
            kinds = [isinstance(entry, Choice) for entry in trajectory.messages_and_choices]
            assert kinds == [False, True] * 3
            assert trajectory.additional_histories == []
            assert trajectory.metadata["asked"] == f"{shared.model.name}@{before}"
            for choice in trajectory.messages_and_choices[1::2]:
                assert isinstance(choice, Choice)
                assert choice.logprobs is not None
                tokens = [token.token for token in choice.logprobs.content or []]
                assert len(tokens) == ANSWER_TOKENS
                assert all(token.startswith("token_id:") for token in tokens)
        result = await shared.backend.train(shared.model, [group], packed_sequence_length=ROW_TOKENS)
        assert result.step == before + 1
        assert result.metrics["data/step_trainer_tokens"] > 0
        assert result.metrics["data/step_num_trajectories_dropped_untrainable"] == 0
        later = await wrapped(0.0)
        assert later.metadata["asked"] == f"{shared.model.name}@{before + 1}"

    shared.loop.run(run())
