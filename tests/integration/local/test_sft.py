"""Supervised fine-tuning through `LocalBackend` in shared mode: served as steps of reinforcement learning are."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import art
from art.checkpoints import checkpoint_dir, list_steps
from art.errors import NoTrainableTokensError, TokenizationError
from art.utils.sft import train_sft_from_file
from tests.integration.local.conftest import SharedRun
from tests.support.local_run import Tiny, fixed_logprobs, listed_names, train_step

pytestmark = pytest.mark.integration

QUESTION = "which word?"
ANSWER = "maybe"
LEARNING_RATE = 1e-2
EXAMPLES = 12
SAME_NATS = 1e-4


@dataclass
class Chain:
    """What was seen while one adapter was trained in three ways.

    Attributes:
        first: The step before; three more were made.
        logprobs: Of a fixed prompt under each step's name, right after the step.
        answers: Of the model to the question, before the chain and after each of its steps.
    """

    first: int
    logprobs: dict[str, list[float]] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)


def example(question: str = QUESTION, answer: str = ANSWER) -> art.Trajectory:
    messages: Any = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return art.Trajectory(messages_and_choices=messages, reward=0.0)


async def ask(model: Tiny) -> str:
    messages: Any = [{"role": "user", "content": QUESTION}]
    answer = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=messages, max_tokens=8, temperature=0
    )
    return answer.choices[0].message.content or ""


async def look(chain: Chain, model: Tiny) -> None:
    chain.logprobs[model.get_inference_name()] = await fixed_logprobs(model)
    chain.answers.append(await ask(model))


@pytest.fixture(scope="module")
def chain(shared: SharedRun) -> Chain:
    """Train answers, then rewards, then answers again."""
    chain, model = Chain(shared.step), shared.model

    async def scenario() -> None:
        await look(chain, model)
        config = art.TrainSFTConfig(learning_rate=LEARNING_RATE)
        await model.train_sft((example() for _ in range(EXAMPLES)), config)
        await look(chain, model)
        await train_step(shared.backend, model)
        await look(chain, model)
        await model.train_sft([example()] * EXAMPLES, config)
        await look(chain, model)

    shared.loop.run(scenario(), 280)
    return chain


def history(shared: SharedRun, step: int) -> dict[str, Any]:
    rows = [json.loads(line) for line in (shared.model_dir / "history.jsonl").read_text().splitlines()]
    (row,) = (row for row in rows if row["training_step"] == step)
    return row


def test_answers_are_learnt(chain: Chain) -> None:
    assert chain.answers[0] != ANSWER
    assert chain.answers[1] == chain.answers[3] == ANSWER


def test_each_step_is_served_with_its_own_weights(shared: SharedRun, chain: Chain) -> None:
    names = [f"tiny@{chain.first + number}" for number in range(4)]
    assert list(chain.logprobs) == names
    assert set(names) <= shared.loop.run(listed_names(shared.model))
    values = list(chain.logprobs.values())
    for before, after in itertools.pairwise(values):
        assert after != pytest.approx(before, abs=10 * SAME_NATS)
    for name, logprobs in chain.logprobs.items():
        assert shared.loop.run(fixed_logprobs(shared.model, name)) == pytest.approx(logprobs, abs=SAME_NATS)


def test_checkpoints_say_how_they_were_made(shared: SharedRun, chain: Chain) -> None:
    manifests = [
        json.loads((checkpoint_dir(shared.model_dir, chain.first + number) / "manifest.json").read_text())
        for number in (1, 2, 3)
    ]
    assert [manifest["made_by"] for manifest in manifests] == ["sft", "rl", "sft"]


def test_metrics_are_logged_once_at_the_step(shared: SharedRun, chain: Chain) -> None:
    row = history(shared, chain.first + 1)
    assert row["data/step_num_gradient_steps"] == 6
    assert row["data/step_num_trajectories"] == EXAMPLES
    assert row["train/sync/served_step"] == chain.first + 1
    assert row["train/sync/logprob_gap"] < SAME_NATS
    assert row["loss/train"] > 0
    assert row["loss/learning_rate"] == LEARNING_RATE


def test_bad_rows_are_refused_by_name_and_nothing_is_trained(shared: SharedRun, chain: Chain) -> None:
    before, logprobs = shared.step, shared.loop.run(fixed_logprobs(shared.model))
    broken: Any = art.Trajectory(messages_and_choices=[{"content": "?"}], reward=0.0)  # type: ignore[list-item]
    unanswered = art.Trajectory(messages_and_choices=[{"role": "user", "content": "?"}], reward=0.0)
    too_few = art.TrainSFTConfig(learning_rate=[1e-3], batch_size=1)

    with pytest.raises(TokenizationError, match=r"^trajectory 4: message 0 has no role"):
        shared.loop.run(shared.model.train_sft([*[example()] * 4, broken]))
    with pytest.raises(NoTrainableTokensError, match="none of the 2 trajectories"):
        shared.loop.run(shared.model.train_sft([unanswered] * 2))
    with pytest.raises(ValueError, match="1 rates for 2 batches"):
        shared.loop.run(shared.model.train_sft([example()] * 2, too_few))
    shared.loop.run(shared.model.train_sft([]))

    assert shared.step == before
    assert shared.loop.run(fixed_logprobs(shared.model)) == pytest.approx(logprobs, abs=SAME_NATS)
    assert list((shared.model_dir / "tensors").glob("sft-*")) == []


def test_rows_that_cannot_be_trained_are_counted(shared: SharedRun, chain: Chain) -> None:
    unanswered = art.Trajectory(messages_and_choices=[{"role": "user", "content": "?"}], reward=0.0)
    rows = [example(), example("say it. " * 400), unanswered, unanswered]
    shared.loop.run(shared.model.train_sft(rows, art.TrainSFTConfig(learning_rate=1e-4)))
    row = history(shared, shared.step)
    assert row["data/step_num_gradient_steps"] == 1
    assert row["data/step_num_trajectories_dropped_overlong"] == 1
    assert row["data/step_num_batches_skipped_untrainable"] == 1
    assert row["data/step_trainer_tokens"] == row["data/gradient_step_trainable_tokens"]


def test_a_file_is_trained_in_one_step(shared: SharedRun, chain: Chain, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"messages": example(f"{QUESTION} {number}").messages()} for number in range(10)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = shared.step
    shared.loop.run(train_sft_from_file(shared.model, str(path), epochs=2, batch_size=4))
    assert list_steps(shared.model_dir)[-1] == shared.step == before + 1
    assert history(shared, shared.step)["data/step_num_trajectories"] == 20
