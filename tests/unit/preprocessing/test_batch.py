"""The batch of a step: what is dropped, what is skipped and why, how long rows are."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from art.dev.settings import TrainSettings
from art.errors import TokenizationError
from art.preprocessing.batch import TrainingBatch, build_training_batch
from art.preprocessing.disk import packed_tensors_from_dir
from art.preprocessing.pack import PackedTensors
from art.trajectories import Trajectory, TrajectoryGroup
from tests.support.tokenizers import THINK_TEMPLATE, answer, bpe_tokenizer, sampled_choice, toy_tokenizer

TOY = toy_tokenizer()
PROMPT_TOKENS = len("user\n" + "U" + "\n" + "assistant\n") + 3  # three special tokens


def build(groups: list[TrajectoryGroup], folder: Path, *, tokenizer: Any = TOY, **options: Any) -> TrainingBatch:
    max_sequence_tokens = options.pop("max_sequence_tokens", 32768)
    chat_template_kwargs = options.pop("chat_template_kwargs", None)
    vocabulary_tokens = options.pop("vocabulary_tokens", None)
    return build_training_batch(
        groups,
        tokenizer=tokenizer,
        image_processor=None,
        tensors_dir=folder / "tensors",
        max_sequence_tokens=max_sequence_tokens,
        settings=replace(TrainSettings(), **options),
        chat_template_kwargs=chat_template_kwargs,
        rng=random.Random(0),
        vocabulary_tokens=vocabulary_tokens,
    )


def group(*answers: tuple[float, Any], question: str = "U") -> TrajectoryGroup:
    """Make a group of (reward, answer); an answer is an entry, or the number of tokens to sample."""
    entries = [
        (reward, sampled_choice([*[65] * (given - 1), TOY.eos_token_id], "A") if isinstance(given, int) else given)
        for reward, given in answers
    ]
    return TrajectoryGroup(
        [
            Trajectory(messages_and_choices=[{"role": "user", "content": question}, entry], reward=reward)
            for reward, entry in entries
        ]
    )


def read(batch: TrainingBatch) -> PackedTensors:
    assert batch.skip_reason is None
    assert batch.disk_packed_tensors is not None
    return packed_tensors_from_dir(**batch.disk_packed_tensors)


def test_short_completions_are_not_padded_to_2048(tmp_path: Path) -> None:
    batch = build([group(*[(float(index), 40) for index in range(32)])], tmp_path)
    tensors = read(batch)
    used = PROMPT_TOKENS - 1 + 32 * (1 + 40)  # the shared prompt once, its last token before each completion
    assert tensors["tokens"].shape == (1, 1344)
    assert 1344 - 64 < used <= 1344
    assert int((tensors["group_ids"] != -1).sum()) == used
    assert batch.metrics == pytest.approx(
        {
            "data/step_num_groups_submitted": 1.0,
            "data/step_num_groups_trainable": 1.0,
            "data/step_num_trajectories_dropped_nonfinite_reward": 0.0,
            "data/step_num_trajectories_dropped_untrainable": 0.0,
            "data/step_num_trajectories_dropped_overlong": 0.0,
            "data/step_trainer_tokens": 32 * 40.0,
            "data/step_num_packed_sequences": 32.0,
            "data/step_num_packed_rows": 1.0,
            "data/packing_utilization": used / 1344,
            "data/packing_ratio": 32 * (PROMPT_TOKENS + 40) / used,
        }
    )


@pytest.mark.parametrize(
    ("num_completions", "tokens", "limit", "row_tokens"),
    [
        (2, 40, 32768, 128),  # 19 + 2 * 41 = 101
        (2, 13, 32768, 64),  # 19 + 2 * 14 = 47
        (3, 14, 32768, 64),  # 19 + 3 * 15 = 64
        (3, 15, 32768, 128),  # 19 + 3 * 16 = 67
        (60, 40, 32768, 2048),  # 2479: rows of short sequences have 2048 tokens at most
        (2, 2100, 32768, 2176),  # 4221 do not fit into 4096, so two rows of 2120
        (2, 40, 70, 64),  # one completion to a row, 60 tokens
        (2, 40, 60, 60),  # never longer than the longest that the trainer takes
    ],
)
def test_rows_are_as_long_as_needed(
    tmp_path: Path, num_completions: int, tokens: int, limit: int, row_tokens: int
) -> None:
    batch = build(
        [group(*[(float(index**2), tokens) for index in range(num_completions)])], tmp_path, max_sequence_tokens=limit
    )
    assert read(batch)["tokens"].shape[1] == row_tokens


def test_packed_sequence_length_is_kept(tmp_path: Path) -> None:
    batch = build([group((0.0, 5), (1.0, 5))], tmp_path, packed_sequence_length=100)
    assert read(batch)["tokens"].shape == (1, 100)


def test_padding_is_the_end_token_and_nothing_else_is_trained(tmp_path: Path) -> None:
    tensors = read(build([group((0.0, 5), (1.0, 5))], tmp_path))
    padding = tensors["group_ids"] == -1
    assert set(tensors["tokens"][padding].tolist()) == {TOY.eos_token_id}
    assert not tensors["assistant_mask"][padding].any()


def test_overlong_trajectories_are_dropped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    groups = [group((0.0, 5), (1.0, 500), (5.0, 400)), group((0.0, 6), (1.0, 7))]
    batch = build(groups, tmp_path, max_sequence_tokens=100)
    assert batch.metrics["data/step_num_trajectories_dropped_overlong"] == 2
    assert batch.metrics["data/step_trainer_tokens"] == 5 + 6 + 7
    assert "dropped 2 sequences of 2 trajectories that are longer than 100 tokens (the longest has 520)" in caplog.text


def test_bad_rewards_are_dropped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    batch = build([group((0.0, 5), (1.0, 5), (float("nan"), 7))], tmp_path)
    assert batch.metrics["data/step_num_trajectories_dropped_nonfinite_reward"] == 1
    assert batch.metrics["data/step_trainer_tokens"] == 10
    assert "whose reward is not a finite number: [nan]" in caplog.text


def test_trajectories_without_sampled_tokens_are_dropped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = {"role": "assistant", "content": "A"}
    equal = group((2.0, plain), (2.0, plain))  # these tell nothing anyway
    batch = build([equal, group((0.0, 5), (1.0, 5), (3.0, plain)), group((0.0, 5), (1.0, 5))], tmp_path)
    assert batch.metrics["data/step_num_trajectories_dropped_untrainable"] == 1
    assert batch.metrics["data/step_trainer_tokens"] == 20
    assert "dropped 1 trajectories without a Choice that has logprobs, first trajectory 2 of group 1" in caplog.text


def _plain(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("groups", "options", "reason"),
    [
        ([], {}, "there are no groups"),
        ([TrajectoryGroup([]), TrajectoryGroup([ValueError("broken")])], {}, "1 rollouts failed; the first: .*broken"),
        ([group((1.0, 5)), group((2.0, 5))], {}, "no group has more than one trajectory"),
        ([group((0.7, 5), (0.7, 5), (0.7, 6)), group((1.0, 5), (1.0, 5))], {}, "in each of the 2 groups all rewards"),
        ([group((float("nan"), 5), (float("inf"), 5))], {}, "no reward is a finite number"),
        (
            [group((0.0, _plain("A")), (1.0, _plain("B")))],
            {},
            "trajectory 0 of group 0.*no Choice, only plain messages",
        ),
        (
            [TrajectoryGroup([]), group((0.0, sampled_choice([], "A")), (1.0, sampled_choice([], "B")))],
            {},
            "trajectory 0 of group 1.*1 Choices, all without logprobs",
        ),
        ([group((0.0, 50), (1.0, 60))], {"max_sequence_tokens": 30}, "all 2 trainable .* longer than 30 tokens"),
        ([group((0.0, 5), (1.0, _plain("B")))], {"advantage_balance": 1.0}, "advantage_balance=1.0 takes away"),
    ],
)
def test_reason_for_an_empty_step(
    tmp_path: Path, groups: list[TrajectoryGroup], options: dict[str, Any], reason: str
) -> None:
    batch = build(groups, tmp_path, **options)
    assert batch.disk_packed_tensors is None
    assert batch.skip_reason is not None
    assert re.search(reason, batch.skip_reason), batch.skip_reason
    assert batch.metrics["data/step_num_groups_submitted"] == len(groups)
    assert batch.metrics["data/step_num_groups_trainable"] == 0
    assert batch.metrics["data/step_trainer_tokens"] == 0
    assert not (tmp_path / "tensors").exists()


def test_plain_text_is_trained_if_allowed(tmp_path: Path) -> None:
    groups = [group((0.0, _plain("A")), (1.0, _plain("BB")))]
    batch = build(groups, tmp_path, allow_training_without_logprobs=True)
    assert batch.metrics["data/step_trainer_tokens"] == 3
    assert read(batch)["logprobs"].isnan().all()


def test_reasoning_that_later_prompts_leave_out_is_trained_turn_by_turn(tmp_path: Path) -> None:
    tokenizer = bpe_tokenizer(THINK_TEMPLATE)
    trajectories = [
        Trajectory(
            messages_and_choices=[
                {"role": "user", "content": "say"},
                answer(tokenizer, f"<think>\n{text}\n</think>\n\nyes"),
                {"role": "user", "content": "say"},
                answer(tokenizer, "no"),
            ],
            reward=reward,
        )
        for reward, text in enumerate(["word", "maybe"])
    ]
    batch = build([TrajectoryGroup(trajectories)], tmp_path, tokenizer=tokenizer)
    assert batch.metrics["data/step_num_packed_sequences"] == 4
    sampled = sum(
        len(entry.logprobs.content)
        for trajectory in trajectories
        for entry in trajectory.messages_and_choices
        if not isinstance(entry, dict)
    )
    assert batch.metrics["data/step_trainer_tokens"] == sampled


def test_same_generator_gives_the_same_batch(tmp_path: Path) -> None:
    groups = [group(*[(float(index), 30) for index in range(9)], question=text) for text in ("U", "V")]
    first, second = (read(build(groups, tmp_path / name)) for name in "ab")
    for key in ("tokens", "group_ids", "advantages"):
        assert first[key].equal(second[key])


def test_picture_goes_beside_the_tensors(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    build([group((0.0, 5), (1.0, 5))], tmp_path, plot_tensors=True)
    assert len(list(tmp_path.glob("packed_tensors_plot_*.png"))) == 1


@pytest.mark.parametrize("unknown", [2000, 10**23])
def test_tokens_that_the_model_does_not_know_are_refused(tmp_path: Path, unknown: int) -> None:
    groups = [group((0.0, 5), (1.0, 5)), group((0.0, 5), (1.0, sampled_choice([65, unknown], "A")), (0.0, 5))]
    with pytest.raises(TokenizationError, match=f"trajectory 1 of group 1 holds token {unknown}.* only 2000") as caught:
        build(groups, tmp_path, vocabulary_tokens=2000)
    assert caught.value.trajectory_index == 1


def test_last_token_that_the_model_knows_is_trained(tmp_path: Path) -> None:
    groups = [group((0.0, 5), (1.0, sampled_choice([65, 1999], "A")))]
    assert 1999 in read(build(groups, tmp_path, vocabulary_tokens=2000))["tokens"]
