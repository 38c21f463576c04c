"""What a call of supervised fine-tuning asks of the service, in which order. With a fake service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from art.dev.settings import SFTSettings
from art.errors import ConfigurationError, DataError, NoTrainableTokensError
from art.local.sft import train_sft
from art.preprocessing.sft_store import StoredPart, StoredSFTBatches
from art.trajectories import Trajectory


class Service:
    """Notes what it is asked; every trajectory counts three trained tokens, one with reward -1 none."""

    def __init__(self, *, fails: bool = False) -> None:
        self.actor = self
        self.parts: list[list[Trajectory]] = []
        self.trained: StoredSFTBatches | None = None
        self.fails = fails

    async def prepare_sft(
        self, part: list[Trajectory], store: Path, *, first_index: int, batch_size: int
    ) -> StoredPart:
        assert first_index == sum(map(len, self.parts))
        assert store.is_dir()
        (store / f"{first_index}.pt").touch()
        self.parts.append(part)
        trainable = [trajectory for trajectory in part if trajectory.reward >= 0]
        return StoredPart("", -(-len(part) // batch_size), len(part), 9 * len(part), 3 * len(trainable), 0, 0)

    async def train_sft(self, batches: StoredSFTBatches, *, verbose: bool) -> AsyncIterator[dict[str, float]]:
        self.trained = batches
        for rate in batches.learning_rates:
            if self.fails:
                raise RuntimeError("ordered by the test")
            yield {"loss/learning_rate": rate, "loss/train": 1.0}


def trajectories(count: int, reward: float = 0.0) -> list[Trajectory]:
    return [Trajectory(messages_and_choices=[], reward=reward) for _ in range(count)]


def train(service: Service, rows: Iterable[Any], settings: SFTSettings, tmp_path: Path) -> list[dict[str, float]]:
    async def run() -> list[dict[str, float]]:
        return [metrics async for metrics in train_sft(service, rows, settings, tmp_path)]  # type: ignore[arg-type]

    return asyncio.run(run())


def test_a_stream_is_handed_over_part_by_part(tmp_path: Path) -> None:
    service = Service()
    given = iter(trajectories(600))
    metrics = train(service, given, SFTSettings(1e-3, batch_size=100), tmp_path)
    assert [len(part) for part in service.parts] == [200, 200, 200]
    assert len(metrics) == 6
    assert metrics[0] == {
        "data/step_num_trajectories": 600.0,
        "data/step_trainer_tokens": 1800.0,
        "data/step_num_trajectories_dropped_overlong": 0.0,
        "data/step_num_batches_skipped_untrainable": 0.0,
        "data/step_num_gradient_steps": 6.0,
        "data/step_num_skipped_nonfinite": 0.0,
        "loss/learning_rate": 1e-3,
        "loss/train": 1.0,
    }
    assert list(tmp_path.iterdir()) == []


def test_each_batch_has_its_rate(tmp_path: Path) -> None:
    metrics = train(Service(), trajectories(5), SFTSettings((0.3, 0.2, 0.1)), tmp_path)
    assert [entry["loss/learning_rate"] for entry in metrics] == [0.3, 0.2, 0.1]


def test_rates_to_spare_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert len(train(Service(), trajectories(3), SFTSettings((0.3, 0.2, 0.1)), tmp_path)) == 2
    assert caplog.text.count("more learning rates than batches: rates=3 batches=2") == 1


@pytest.mark.parametrize("as_stream", [False, True])
def test_too_few_rates_are_refused_before_anything_is_trained(as_stream: bool, tmp_path: Path) -> None:
    service = Service()
    rows: Iterable[Trajectory] = trajectories(5)
    with pytest.raises(ConfigurationError, match="2 rates for 3 batches"):
        train(service, iter(rows) if as_stream else rows, SFTSettings((0.3, 0.2)), tmp_path)
    assert bool(service.parts) is as_stream  # a list's length is known before it is tokenized
    assert service.trained is None


def test_nothing_given_makes_no_step(tmp_path: Path) -> None:
    service = Service()
    assert train(service, [], SFTSettings(), tmp_path) == []
    assert service.trained is None


def test_nothing_to_train_is_refused_before_the_engine_is_asked_to_yield(tmp_path: Path) -> None:
    service = Service()
    with pytest.raises(NoTrainableTokensError):
        train(service, trajectories(4, reward=-1.0), SFTSettings(), tmp_path)
    assert service.trained is None
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_trajectory_is_named(tmp_path: Path) -> None:
    service = Service()
    with pytest.raises(DataError, match="trajectory 3 is a dict: train_sft takes Trajectories"):
        train(service, [*trajectories(3), {"messages": []}], SFTSettings(), tmp_path)
    assert service.parts == []


def test_files_go_when_training_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ordered"):
        train(Service(fails=True), trajectories(2), SFTSettings(), tmp_path)
    assert list(tmp_path.iterdir()) == []
