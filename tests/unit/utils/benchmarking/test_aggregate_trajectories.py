from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import art
from art.utils.benchmarking.aggregate_trajectories import load_aggregated_trajectories, load_latest_metrics
from art.utils.benchmarking.filter_model_split import filter_rename_model_split
from art.utils.benchmarking.load_trajectories import load_trajectories
from art.utils.benchmarking.types import BenchmarkModelKey
from tests.support.conversations import make_trajectory


def group(*rewards: float, **metrics: float) -> art.TrajectoryGroup:
    return art.TrajectoryGroup([make_trajectory(r, metrics={"reward": r, **metrics}) for r in rewards])


def log(tmp_path: Path, name: str, groups: list[art.TrajectoryGroup], *, split: str = "val", step: int = 0) -> None:
    model = art.Model(name=name, project="mail", base_path=str(tmp_path))
    asyncio.run(model.log(groups, split=split, step=step))


@pytest.fixture
def art_path(tmp_path: Path) -> str:
    log(tmp_path, "a", [group(0.0, 1.0, 1.0, 0.0, turns=2), group(1.0)], step=1)
    log(tmp_path, "a", [group(0.25, 0.75)], step=12)
    log(tmp_path, "a", [group(0.1)], split="train", step=13)
    log(tmp_path, "b", [group(0.5)], step=4)
    return str(tmp_path)


def test_groups_weigh_the_same_whatever_their_size(art_path: str) -> None:
    frame = asyncio.run(load_aggregated_trajectories("mail", art_path=art_path))
    assert frame.select("model", "split", "step").rows() == [
        ("a", "train", 13),
        ("a", "val", 1),
        ("a", "val", 12),
        ("b", "val", 4),
    ]
    rows = frame.to_dicts()
    assert rows[1]["reward"] == rows[1]["metric_reward"] == 0.75
    assert rows[1]["metric_turns"] == 2.0
    assert rows[1]["metric_reward_std_dev"] == 0.5
    assert rows[2]["metric_reward_std_dev"] == 0.25
    assert rows[3]["metric_reward_std_dev"] is None
    assert "recorded_at" not in frame.columns


def test_only_the_metrics_asked_for_are_averaged(art_path: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        frame = asyncio.run(load_aggregated_trajectories("mail", metrics=["turns", "absent"], art_path=art_path))
    assert frame.columns == ["model", "split", "step", "reward", "metric_turns"]
    assert "absent" in caplog.text


def test_times_come_from_the_history(art_path: str) -> None:
    before = datetime.now()
    path = Path(art_path) / "mail/models/b/history.jsonl"
    path.write_text(path.read_text() + "half a line")
    frame = asyncio.run(load_aggregated_trajectories("mail", art_path=art_path, include_history=True))
    times = frame["recorded_at"].to_list()
    assert all(abs((time - before).total_seconds()) < 60 for time in times)
    assert len(times) == 4


def test_latest_metrics_are_those_of_the_last_step_of_each_model(art_path: str) -> None:
    frame = asyncio.run(load_latest_metrics("mail", art_path=art_path))
    assert [(r["model"], r["step"], r["reward"]) for r in frame.to_dicts()] == [("a", 12, 0.5), ("b", 4, 0.5)]
    frame = asyncio.run(load_latest_metrics("mail", ["a"], "train", art_path=art_path))
    assert frame["step"].to_list() == [13]


def test_empty_project_gives_an_empty_table(tmp_path: Path) -> None:
    assert asyncio.run(load_aggregated_trajectories("mail", art_path=str(tmp_path), include_history=True)).is_empty()
    assert asyncio.run(load_latest_metrics("mail", art_path=str(tmp_path))).is_empty()


def test_models_are_chosen_renamed_and_put_in_order(art_path: str) -> None:
    frame = asyncio.run(load_trajectories("mail", art_path=art_path))
    keys = [BenchmarkModelKey("b", "Base"), BenchmarkModelKey("a", split="train"), BenchmarkModelKey("absent")]
    chosen = filter_rename_model_split(frame, keys)
    assert chosen.select("model", "split", "step").rows() == [("Base", "val", 4), ("a", "train", 13)]
    assert filter_rename_model_split(frame, []).is_empty()
    assert filter_rename_model_split(frame, []).columns == frame.columns


def test_key_has_defaults_and_is_shown_by_its_display_name() -> None:
    key = BenchmarkModelKey("m")
    assert (key.name, key.display_name, key.split, str(key)) == ("m", "m", "val", "m")
    shown: Any = BenchmarkModelKey("m", "M", "test")
    assert (str(shown), shown.split) == ("M", "test")
