"""Tokenizing and packing: tokens per second, and how that changes with group size and with the length of a history."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

from common import keep
from engine import tiny_model
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_message import ChatCompletionMessage
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob

import art
from art.dev.settings import TrainSettings
from art.preprocessing.batch import build_training_batch

ANSWER_TOKENS = 64


def answer(rng: random.Random) -> Choice:
    """Return a sampled turn as the server gives it."""
    tokens = [
        ChatCompletionTokenLogprob(token=f"token_id:{rng.randrange(3, 300)}", bytes=[97], logprob=-1.0, top_logprobs=[])
        for _ in range(ANSWER_TOKENS)
    ]
    message = ChatCompletionMessage(role="assistant", content="a" * ANSWER_TOKENS)
    return Choice(finish_reason="stop", index=0, message=message, logprobs=ChoiceLogprobs(content=tokens))


def make_group(rng: random.Random, *, trajectories: int, turns: int) -> art.TrajectoryGroup:
    """Return a group whose trajectories share their first question."""
    members = []
    for number in range(trajectories):
        messages: list[art.types.MessageOrChoice] = []
        for turn in range(turns):
            messages += [{"role": "user", "content": f"say the word maybe, {turn} times please"}, answer(rng)]
        members.append(art.Trajectory(messages_and_choices=messages, reward=float(number % 2)))
    return art.TrajectoryGroup(members)


def measure(*, groups: int, trajectories: int, turns: int) -> dict[str, float]:
    """Build one batch and return its size and speed."""
    from transformers import AutoTokenizer

    rng = random.Random(0)
    base, _ = tiny_model(1)
    tokenizer = AutoTokenizer.from_pretrained(base)
    made = [make_group(rng, trajectories=trajectories, turns=turns) for _ in range(groups)]
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        batch = build_training_batch(
            made,
            tokenizer=tokenizer,
            image_processor=None,
            tensors_dir=Path(folder),
            max_sequence_tokens=32768,
            settings=TrainSettings(),
            chat_template_kwargs=None,
            rng=rng,
        )
        took_s = time.perf_counter() - started
    assert batch.disk_packed_tensors is not None, batch.skip_reason
    trained = batch.metrics["data/step_trainer_tokens"]
    return {
        "groups": groups,
        "trajectories": trajectories,
        "turns": turns,
        "trained_tokens": trained,
        "took_s": took_s,
        "trained_tokens_per_s": trained / took_s,
        "us_per_trained_token": 1e6 * took_s / trained,
    }


def main() -> None:
    measure(groups=1, trajectories=2, turns=1)  # warm
    by_group = [measure(groups=2, trajectories=size, turns=2) for size in (8, 32, 128)]
    by_length = [measure(groups=2, trajectories=8, turns=turns) for turns in (2, 8, 32)]
    group_growth = by_group[-1]["us_per_trained_token"] / by_group[0]["us_per_trained_token"]
    length_growth = by_length[-1]["us_per_trained_token"] / by_length[0]["us_per_trained_token"]
    keep(
        "tokenize_and_pack",
        {
            "by_group_size": by_group,
            "by_history_length": by_length,
            "cost_per_token_growth_with_16x_group": group_growth,
            "cost_per_token_growth_with_16x_history": length_growth,
        },
        f"{by_group[0]['trained_tokens_per_s']:.0f} trained tokens/s; the cost per token grows "
        f"{group_growth:.2f} times "
        f"with 16 times the group and {length_growth:.2f} times with 16 times the history (1 is linear)",
    )


if __name__ == "__main__":
    main()
