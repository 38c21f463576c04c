"""Strategies for trajectory groups with everything that they may hold."""

from __future__ import annotations

from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice

from art.trajectories import History, PydanticException, Trajectory, TrajectoryGroup
from tests.support.conversations import make_tool_call

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}

# Anything that a UTF-8 column can hold. Halves of surrogate pairs have a test of their own.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
finite = st.floats(allow_nan=False)
scalars = st.none() | st.booleans() | st.integers() | finite | texts
metrics = st.dictionaries(texts, st.booleans() | st.integers() | finite, max_size=3)
metadata = st.dictionaries(texts, scalars, max_size=3)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2)
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
    optional={
        "content": texts | st.none() | st.lists(st.dictionaries(texts, json_values, max_size=2), max_size=2),
        "tool_call_id": texts,
        "tool_calls": st.lists(st.builds(make_tool_call, texts, texts, texts), max_size=2),
        "reasoning_content": texts,
        "name": texts,
    },
)
sampled_tokens = st.fixed_dictionaries(
    {
        "token": texts,
        "logprob": st.floats(max_value=0, allow_infinity=False),
        "bytes": st.none() | st.lists(st.integers(0, 255), max_size=3),
        "top_logprobs": st.just([]),
    }
)
choices = st.builds(
    Choice.construct,
    finish_reason=st.sampled_from(["stop", "length", "tool_calls", "abort"]),
    index=st.integers(0, 3),
    logprobs=st.none() | st.fixed_dictionaries({"content": st.lists(sampled_tokens, max_size=3), "refusal": st.none()}),
    message=st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": texts | st.none()},
        optional={
            "tool_calls": st.lists(st.builds(make_tool_call, texts, texts, texts), min_size=1, max_size=2),
            "reasoning": texts,
            "refusal": texts,
        },
    ),
    token_ids=st.none() | st.lists(st.integers(0, 200_000), max_size=3),
)
conversations = st.lists(messages | choices, max_size=4)
tools = st.none() | st.lists(st.just(TOOL), max_size=2)
trajectories = st.builds(
    Trajectory,
    messages_and_choices=conversations,
    tools=tools,
    additional_histories=st.lists(st.builds(History, messages_and_choices=conversations, tools=tools), max_size=2),
    reward=finite,
    initial_policy_version=st.none() | st.integers(0, 2**40),
    final_policy_version=st.none() | st.integers(0, 2**40),
    metrics=metrics,
    metadata=metadata,
    logs=st.lists(texts, max_size=2),
)
exceptions = st.builds(PydanticException, type=texts, message=texts, traceback=texts)
groups = st.builds(
    TrajectoryGroup,
    st.lists(trajectories, max_size=3),
    exceptions=st.lists(exceptions, max_size=2),
    metadata=metadata,
    metrics=metrics,
    logs=st.lists(texts, max_size=2),
)
