"""Builders of choices and trajectories."""

from __future__ import annotations

from typing import Any

from openai.types.chat.chat_completion import Choice

from art.trajectories import Trajectory


def make_choice(text: str | None = "hi", *, tokens: int | None = None, **fields: Any) -> Choice:
    """Make an answer; with `tokens`, one that has as many sampled tokens with logprobs."""
    logprobs = None
    if tokens is not None:
        logprobs = {"content": [{"token": f"token_id:{n}", "logprob": -0.5, "top_logprobs": []} for n in range(tokens)]}
    message = {"role": "assistant", "content": text, **fields.pop("message", {})}
    return Choice.model_validate(
        {"finish_reason": "stop", "index": 0, "message": message, "logprobs": logprobs, **fields}
    )


def make_tool_call(name: str = "look", arguments: str = "{}", call_id: str = "call-1") -> dict[str, Any]:
    """Make a tool call as it appears in an assistant message."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def make_trajectory(reward: float = 0.0, *, tokens: int | None = None, **fields: Any) -> Trajectory:
    """Make a trajectory of one question and one answer."""
    return Trajectory(
        messages_and_choices=[{"role": "user", "content": "question"}, make_choice(tokens=tokens)],
        reward=reward,
        **fields,
    )
