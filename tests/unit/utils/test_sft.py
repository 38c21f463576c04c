from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import art
from art.errors import ConfigurationError, DataError, TokenizationError
from art.types import TrainSFTConfig
from art.utils.sft import (
    create_lr_schedule,
    create_sft_dataset_iterator,
    get_file_row_count,
    iterate_file,
    train_sft_from_file,
)
from tests.support.tokenizers import load_golden

GOLDEN = load_golden("iteration.json")
CHUNKS = GOLDEN["create_sft_dataset_iterator"]["cases"]
SEVEN = [art.Trajectory(messages_and_choices=[], reward=float(index)) for index in range(7)]
WriteRows = Callable[..., str]


@pytest.fixture
def write_rows(tmp_path: Path) -> WriteRows:
    def write(rows: list[Any], name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


def row(text: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": str(text)}, {"role": "assistant", "content": "yes"}]}


def asked(trajectories: Any) -> list[str]:
    return [trajectory.messages()[0]["content"] for trajectory in trajectories]


def chunks_of(**arguments: Any) -> list[dict[str, Any]]:
    arguments.setdefault("show_progress", False)
    return [
        {
            "rewards": [trajectory.reward for trajectory in chunk.trajectories],
            "learning_rate": [round(rate, 6) for rate in chunk.config.learning_rate],  # type: ignore[union-attr]
            "batch_size": chunk.config.batch_size,
            "step": chunk.step,
            "epoch": chunk.epoch,
            "epoch_step": chunk.epoch_step,
        }
        for chunk in create_sft_dataset_iterator(SEVEN, **arguments)
    ]


@pytest.mark.parametrize("case", GOLDEN["create_lr_schedule"], ids=lambda case: str(case["args"]))
def test_schedules(case: dict[str, Any]) -> None:
    assert [round(rate, 6) for rate in create_lr_schedule(**case["args"])] == case["lrs"]


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'square' is unknown; use one of cosine, linear, constant"):
        create_lr_schedule(3, 1.0, "square")  # type: ignore[arg-type]


def test_chunks_of_a_data_set() -> None:
    assert chunks_of(**CHUNKS[0]["args"]) == CHUNKS[0]["chunks"]


def test_resuming_goes_on_at_exactly_that_batch() -> None:
    # The third of four batches was the last of its chunk's first half: only the fourth is left of that chunk.
    assert CHUNKS[1]["args"]["initial_step"] == 3
    rest = {"rewards": [6.0], "learning_rate": [0.904508], "batch_size": 2, "step": 3, "epoch": 0, "epoch_step": 3}
    assert chunks_of(**CHUNKS[1]["args"]) == [rest, *CHUNKS[1]["chunks"][1:]]


@pytest.mark.parametrize("initial_step", range(9))
def test_a_resumed_run_sees_what_was_left(initial_step: int) -> None:
    arguments = {"chunk_size": 3, "epochs": 2, "peak_lr": 1.0}
    whole = chunks_of(**arguments)
    rewards = [reward for chunk in whole for reward in chunk["rewards"]]
    rates = [rate for chunk in whole for rate in chunk["learning_rate"]]
    resumed = chunks_of(**arguments, initial_step=initial_step)
    trained = min(2 * initial_step, 7) + 2 * max(initial_step - 4, 0)  # an epoch's last batch has one trajectory
    assert [reward for chunk in resumed for reward in chunk["rewards"]] == rewards[trained:]
    assert [rate for chunk in resumed for rate in chunk["learning_rate"]] == rates[initial_step:]


def test_the_progress_bar_counts_batches(capsys: pytest.CaptureFixture[str]) -> None:
    chunks_of(chunk_size=3, initial_step=1, show_progress=True)
    assert "4/4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"),
    [("chunk_size", 0), ("batch_size", 0), ("initial_step", -1), ("warmup_ratio", -0.1), ("warmup_ratio", 1.5)],
)
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is {value}"):
        chunks_of(**{name: value})


def test_a_schedule_has_no_negative_warm_up() -> None:
    with pytest.raises(ConfigurationError, match="warmup_steps is -1"):
        create_lr_schedule(3, 1.0, warmup_steps=-1)


def test_no_trajectories_give_no_chunk() -> None:
    assert list(create_sft_dataset_iterator([], initial_step=3)) == []


@pytest.mark.parametrize("case", GOLDEN["iterate_file"]["cases"], ids=lambda case: str(case["args"]))
def test_rows_of_a_file(case: dict[str, Any], write_rows: WriteRows) -> None:
    path = write_rows([row(number) for number in range(6)])
    assert asked(iterate_file(path, **case["args"])) == case["order"]


def test_empty_lines_do_not_count(write_rows: WriteRows) -> None:
    path = write_rows([row(0), "\n", "  \n", row(1), "\n"])
    assert get_file_row_count(path) == 2
    assert sorted(asked(iterate_file(path))) == ["0", "1"]


def test_tools_are_kept(write_rows: WriteRows) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    (trajectory,) = iterate_file(write_rows([{**row(0), "tools": tools}]))
    assert trajectory.tools == tools


def test_other_files_are_refused(write_rows: WriteRows) -> None:
    path = write_rows([row(0)], name="rows.json")
    for call in (get_file_row_count, lambda path: list(iterate_file(path))):
        with pytest.raises(ValueError, match=r"not a \.jsonl file"):
            call(path)


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ('{"messages": [\n', "not JSON"),
        ("[" * 50_000 + "\n", "not JSON"),
        ([row(0)], "at least one message"),
        ({"prompt": "x"}, "at least one message"),
        ({"messages": []}, "at least one message"),
        ({"messages": ["hello"]}, "entry 0 is neither a message nor a Choice: str"),
        ({**row(0), "tools": "look"}, "expected a list of tools"),
    ],
)
def test_broken_rows_are_named_by_their_line(broken: Any, complaint: str, write_rows: WriteRows) -> None:
    path = write_rows([row(0), "\n", broken, row(1)])
    with pytest.raises(DataError, match=rf"rows\.jsonl:3: (not|expected|entry).*{complaint}|:3: {complaint}"):
        list(iterate_file(path))


class Recorder:
    """Stands for a model; takes what it is given as a backend would, one trajectory after the other."""

    def __init__(self, broken_at: int | None = None) -> None:
        self.broken_at = broken_at
        self.config = TrainSFTConfig()
        self.asked: list[str] = []
        self.options: Any = None

    async def train_sft(self, trajectories: Any, config: TrainSFTConfig, _config: Any, verbose: bool) -> None:
        assert not isinstance(trajectories, list | tuple)
        self.config, self.options = config, (_config, verbose)
        for index, trajectory in enumerate(trajectories):
            self.asked += asked([trajectory])
            if index == self.broken_at:
                raise TokenizationError(f"trajectory {index}: refused", trajectory_index=index, message_index=1)


def train_file(path: str, model: Recorder | None = None, **arguments: Any) -> Recorder:
    model = model or Recorder()
    asyncio.run(train_sft_from_file(model, path, **arguments))  # type: ignore[arg-type]
    return model


def test_a_file_is_trained_under_one_schedule(write_rows: WriteRows) -> None:
    path = write_rows([row(number) for number in range(6)])
    model = train_file(path, epochs=2, batch_size=5, peak_lr=1.0, warmup_ratio=0.4, shuffle_buffer_size=3, verbose=True)
    assert model.asked == GOLDEN["iterate_file"]["cases"][1]["order"]
    assert model.config == TrainSFTConfig(learning_rate=[1.0, 1.0, 0.0], batch_size=5)  # 12 rows: 3 batches, 1 warm-up
    assert model.options == (None, True)


def test_a_file_is_trained_part_by_part(write_rows: WriteRows) -> None:
    path = write_rows([row(number) for number in range(6)])
    options: dict[str, Any] = {"epochs": 2, "batch_size": 2, "peak_lr": 1.0, "warmup_ratio": 0.0}
    whole = train_file(path, **options)
    parts = [train_file(path, initial_step=0, final_step=4, **options), train_file(path, initial_step=4, **options)]
    assert parts[0].asked + parts[1].asked == whole.asked
    rates = [rate for part in parts for rate in part.config.learning_rate]  # type: ignore[union-attr]
    assert rates == whole.config.learning_rate == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.0])
    assert train_file(path, initial_step=6, **options).asked == []


@pytest.mark.parametrize("steps", [{"initial_step": -1}, {"initial_step": 4}, {"initial_step": 2, "final_step": 1}])
def test_parts_that_a_file_does_not_have(steps: dict[str, int], write_rows: WriteRows) -> None:
    with pytest.raises(ConfigurationError, match=r"gives batches 0 to 2"):
        train_file(write_rows([row(number) for number in range(6)]), **steps)


def test_a_row_that_cannot_be_tokenized_is_named_by_its_line(write_rows: WriteRows) -> None:
    path = write_rows(["\n", *(row(number) for number in range(6))])
    model = Recorder(broken_at=1)
    with pytest.raises(TokenizationError, match=r"rows.jsonl:3: trajectory 1: refused") as caught:
        train_file(path, model)
    assert model.asked[1] == "1"  # of line 3, since the first one is empty
    assert (caught.value.trajectory_index, caught.value.message_index) == (1, 1)
