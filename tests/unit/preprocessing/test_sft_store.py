from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from art.errors import NoTrainableTokensError, TokenizationError
from art.preprocessing.sft import tokenize_sft_batch
from art.preprocessing.sft_store import (
    StoredPart,
    StoredSFTBatches,
    make_store,
    part_size,
    remove_abandoned_stores,
    store_part,
)
from art.trajectories import Trajectory
from tests.support.chat_templates import CHATML, template_tokenizer

TOKENIZER = template_tokenizer(CHATML)


def trajectory(answer: str | None) -> Trajectory:
    messages: list[Any] = [{"role": "user", "content": "2+3?"}]
    if answer is not None:
        messages.append({"role": "assistant", "content": answer})
    return Trajectory(messages_and_choices=messages, reward=0.0)


def store(folder: Path, rows: list[Trajectory], first_index: int = 0, max_seq_length: int = 1000) -> StoredPart:
    return store_part(
        folder,
        rows,
        first_index=first_index,
        batch_size=2,
        tokenizer=TOKENIZER,
        max_seq_length=max_seq_length,
        chat_template_kwargs=None,
    )


def test_batches_come_back_in_order_with_their_rates(tmp_path: Path) -> None:
    folder = make_store(tmp_path / "tensors")
    rows = [trajectory(str(number) * number) for number in range(1, 6)]
    batches = StoredSFTBatches([store(folder, rows[:4]), store(folder, rows[4:], first_index=4)], [0.1, 0.2, 0.3])
    assert len(batches) == 3
    for _ in range(2):  # they can be read again
        for found, start in zip(batches, (0, 2, 4), strict=True):
            expected = tokenize_sft_batch(rows[start : start + 2], [0.1, 0.2, 0.3][start // 2], TOKENIZER)
            assert found.learning_rate == expected.learning_rate
            assert found.num_trainable_tokens == expected.num_trainable_tokens
            torch.testing.assert_close(found.trajectory_tensors, expected.trajectory_tensors, atol=0, rtol=0)


def test_counts_of_what_is_trained_and_what_is_not(tmp_path: Path) -> None:
    folder = make_store(tmp_path / "tensors")
    parts = [
        store(folder, [trajectory("5"), trajectory("a"), trajectory(None), trajectory(None)]),
        store(folder, [trajectory("x" * 99)], first_index=4, max_seq_length=60),
    ]
    assert StoredSFTBatches(parts, [0.1] * 3).metrics() == {
        "data/step_num_trajectories": 4.0,
        "data/step_trainer_tokens": 4.0,  # a character and the end of the turn, twice
        "data/step_num_trajectories_dropped_overlong": 1.0,
        "data/step_num_batches_skipped_untrainable": 2.0,
    }


def test_nothing_to_train_anywhere_says_why(tmp_path: Path) -> None:
    folder = make_store(tmp_path / "tensors")
    part = store(folder, [trajectory(None), trajectory("x" * 99), trajectory(None)], max_seq_length=60)
    with pytest.raises(NoTrainableTokensError, match=r"none of the 3 .* 1 are longer .*, 2 hold no assistant message"):
        StoredSFTBatches([part], [0.1, 0.1]).require_trainable()


def test_a_broken_row_of_a_later_part_has_its_number_in_the_call(tmp_path: Path) -> None:
    broken = Trajectory(messages_and_choices=[{"content": "?"}], reward=0.0)  # type: ignore[list-item]
    with pytest.raises(TokenizationError, match=r"^trajectory 259: message 0 has no role"):
        store(make_store(tmp_path / "tensors"), [trajectory("5")] * 3 + [broken], first_index=256)


@pytest.mark.parametrize(("batch_size", "expected"), [(1, 256), (3, 255), (256, 256), (300, 300)])
def test_parts_hold_whole_batches(batch_size: int, expected: int) -> None:
    assert part_size(batch_size) == expected


def test_abandoned_folders_are_removed_and_nothing_else(tmp_path: Path) -> None:
    tensors = tmp_path / "tensors"
    store(make_store(tensors), [trajectory("5")])
    (tensors / "tokens.pt").write_text("of a batch")
    remove_abandoned_stores(tensors)
    assert [path.name for path in tensors.iterdir()] == ["tokens.pt"]
    remove_abandoned_stores(tmp_path / "nowhere")


def test_what_is_not_trained_is_said_once_for_many_batches(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_store(tmp_path / "tensors")
    store(folder, [trajectory(answer) for answer in ("5", None, "a" * 2000, None, "a" * 1500, "5")], max_seq_length=100)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert messages[0].startswith("dropped sequences of 2 trajectories that are longer than 100 tokens")
    assert messages[1] == "2 trajectories hold no assistant message, first trajectory 1"


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    folder = make_store(tmp_path / "tensors")
    (folder / "000000000.pt").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"000000000\.pt cannot be written"):
        store(folder, [trajectory("5")])
