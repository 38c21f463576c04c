"""What `Model.log` writes. Numbers are computed by hand."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from art.model import Model
from art.model.run_log import qualify_key
from art.trajectories import Trajectory, TrajectoryGroup
from art.utils.trajectory_logging import read_trajectory_groups_parquet
from tests.support.conversations import make_trajectory
from tests.support.fake_backend import FakeLocalBackend

ROW_FACTS = {"training_step", "time/wall_clock_sec", "step", "recorded_at"}


def prompted(tmp_path: Path) -> Model[Any, Any]:
    return Model(name="agent", project="mail", base_path=str(tmp_path))


def model_dir(tmp_path: Path) -> Path:
    return tmp_path / "mail" / "models" / "agent"


def rows(tmp_path: Path) -> list[dict[str, Any]]:
    path = model_dir(tmp_path) / "history.jsonl"
    if not path.exists():
        return []

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def log(model: Model[Any, Any], *args: Any, **kwargs: Any) -> None:
    asyncio.run(model.log(*args, **kwargs))


def metrics_of(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ROW_FACTS}


def two_groups() -> list[TrajectoryGroup]:
    return [
        TrajectoryGroup(
            [
                make_trajectory(1.0, metrics={"turns": 4, "solved": True}),
                make_trajectory(0.0, metrics={"turns": 2}),
            ],
            exceptions=[ValueError("failed")],
            metrics={"difficulty": 3},
            metadata={"scenario_id": "s1"},
        ),
        TrajectoryGroup([make_trajectory(0.5, metrics={"solved": False})], metrics={"other": 1}),
        TrajectoryGroup([ValueError("failed")], metrics={"difficulty": 100}),
    ]


def test_averages_of_an_evaluation(tmp_path: Path) -> None:
    log(prompted(tmp_path), two_groups(), step=3)
    (row,) = rows(tmp_path)
    assert metrics_of(row) == {
        "val/reward": 0.5,
        "val/exception_rate": 0.4,
        "val/reward_std_dev": 0.5,
        "val/turns": 3.0,
        "val/solved": 0.5,
        "val/group_difficulty": 3.0,
        "val/group_other": 1.0,
        "data/step_num_scenarios": 3.0,
        "data/step_num_groups_submitted": 3.0,
        "data/step_num_trajectories": 5.0,
    }
    assert row["step"] == row["training_step"] == 3
    assert 0 <= row["time/wall_clock_sec"] < 60
    assert datetime.fromisoformat(row["recorded_at"]).tzinfo is None


def test_training_counts_accumulate_and_evaluations_do_not_mix_in(tmp_path: Path) -> None:
    model = prompted(tmp_path)
    log(model, two_groups(), "train", step=1)
    log(model, two_groups(), "val", step=1)
    log(model, two_groups(), "train", step=2)
    last = rows(tmp_path)[-1]
    assert last["data/step_num_groups_trainable"] == 1.0
    assert last["data/cum/num_trajectories"] == 10.0
    assert last["data/cum/num_groups_trainable"] == 2.0
    assert last["data/cum/num_unique_scenarios"] == 1.0


def test_totals_go_on_in_the_next_run(tmp_path: Path) -> None:
    log(prompted(tmp_path), two_groups(), "train", step=1, metrics={"costs/judge": 0.5})
    log(prompted(tmp_path), two_groups(), "train", step=2, metrics={"costs/judge": 0.25})
    last = rows(tmp_path)[-1]
    assert last["costs/cum/judge"] == 0.75
    assert last["data/cum/num_trajectories"] == 10.0
    stored = json.loads((model_dir(tmp_path) / "state.json").read_text())["_metrics_builder_state"]
    assert stored["cum_state"]["costs/cum/all"] == 0.75
    assert stored["unique_scenario_ids"] == ["s1"]


def test_stored_state_is_found_after_the_folder_changes(tmp_path: Path) -> None:
    log(prompted(tmp_path / "a"), metrics={"costs/judge": 0.5}, split="train", step=1)
    model = prompted(tmp_path / "b")
    model.metrics_builder().add_cost("judge", 1.0)  # looks into b first
    model.base_path = str(tmp_path / "a")
    log(model, metrics={"x": 1.0}, split="train", step=2)
    assert rows(tmp_path / "a")[-1]["costs/cum/judge"] == 1.5


def test_costs_and_step_metrics_are_summed_wherever_they_come_from(tmp_path: Path) -> None:
    groups = [
        TrajectoryGroup(
            [
                make_trajectory(1.0, metrics={"costs/tool": 0.25, "time/step_actor_s": 2.0}),
                make_trajectory(0.0, metrics={"costs/tool": 0.5, "data/step_actor_tokens": 30}),
            ],
            metrics={"costs/judge": 1.0},
        )
    ]
    log(prompted(tmp_path), groups, "train", step=1, metrics={"costs/tool": 4.0})
    (row,) = rows(tmp_path)
    assert row["costs/tool"] == 4.75
    assert row["costs/judge"] == 1.0
    assert row["costs/all"] == row["costs/cum/all"] == 5.75
    assert row["time/step_actor_s"] == 2.0
    assert row["throughput/avg_actor_tok_per_s"] == 15.0
    assert "train/costs/tool" not in row
    assert "train/group_costs/judge" not in row


def test_costs_of_an_active_builder_reach_the_row_of_their_split(tmp_path: Path) -> None:
    model = prompted(tmp_path)
    model.metrics_builder("train").add_cost("train/llm", 1.0)
    model.metrics_builder("eval").add_cost("eval/llm", 2.0)
    log(model, metrics={"x": 1.0}, split="val", step=1)
    log(model, metrics={"x": 1.0}, split="train", step=1)
    evaluation, training = rows(tmp_path)
    assert evaluation["costs/eval/llm"] == 2.0
    assert "costs/train/llm" not in evaluation
    assert training["costs/train/llm"] == 1.0
    assert training["costs/cum/all"] == 3.0


def test_the_callers_metrics_win(tmp_path: Path) -> None:
    log(
        prompted(tmp_path),
        [make_trajectory(1.0)],
        "train",
        step=1,
        metrics={"reward": 9.0, "data/step_num_scenarios": 7, "loss/train": 2.0},
    )
    (row,) = rows(tmp_path)
    assert row["train/reward"] == 9.0
    assert row["data/step_num_scenarios"] == 7.0
    assert row["loss/train"] == 2.0


@pytest.mark.parametrize(
    ("key", "split", "expected"),
    [
        ("reward", "train", "train/reward"),
        ("loss/train", "val", "loss/train"),
        ("costs/cum/all", "test", "costs/cum/all"),
        ("val/reward", "train", "val/reward"),
        ("mine/x", "train", "train/mine/x"),
        ("loss", "train", "train/loss"),
        ("costs/cum/all", "discarded", "discarded/costs/cum/all"),
        ("reward", "discarded", "discarded/reward"),
    ],
)
def test_names_in_the_history(key: str, split: str, expected: str) -> None:
    assert qualify_key(key, split) == expected


def test_other_splits_have_no_counts_and_prefix_everything(tmp_path: Path) -> None:
    log(prompted(tmp_path), [make_trajectory(1.0, metrics={"costs/tool": 1.0})], "discarded", step=1)
    assert metrics_of(rows(tmp_path)[0]) == {
        "discarded/reward": 1.0,
        "discarded/exception_rate": 0.0,
        "discarded/reward_std_dev": 0.0,
        "discarded/costs/tool": 1.0,
        "discarded/costs/all": 1.0,
        "discarded/costs/cum/tool": 1.0,
        "discarded/costs/cum/all": 1.0,
    }


def test_nan_is_left_out_and_infinity_is_null(tmp_path: Path) -> None:
    model = prompted(tmp_path)
    log(model, metrics={"a": math.nan, "b": math.inf, "c": 1.0}, step=1)
    log(model, metrics={"a": math.nan}, step=2)
    (row,) = rows(tmp_path)
    assert metrics_of(row) == {"val/b": None, "val/c": 1.0}


def test_nothing_to_log_writes_nothing(tmp_path: Path) -> None:
    model = prompted(tmp_path)
    log(model)
    assert not model_dir(tmp_path).exists()
    log(model, metrics={})
    assert rows(tmp_path) == []


def test_empty_iterable_writes_an_empty_file(tmp_path: Path) -> None:
    log(prompted(tmp_path), [], step=2)
    assert read_trajectory_groups_parquet(model_dir(tmp_path) / "trajectories" / "val" / "0002.parquet") == []
    assert metrics_of(rows(tmp_path)[0])["data/step_num_trajectories"] == 0.0


def test_bare_trajectories_and_one_group_by_itself(tmp_path: Path) -> None:
    model = prompted(tmp_path)
    log(model, iter([make_trajectory(1.0), ValueError("failed")]), step=1)
    log(model, two_groups()[0], step=2)
    folder = model_dir(tmp_path) / "trajectories" / "val"
    (bare,) = read_trajectory_groups_parquet(folder / "0001.parquet")
    assert (len(bare), bare.exceptions[0].message) == (1, "failed")
    (group,) = read_trajectory_groups_parquet(folder / "0002.parquet")
    assert group.metadata == {"scenario_id": "s1"}


def test_mixtures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Trajectory, TrajectoryGroup"):
        log(prompted(tmp_path), [make_trajectory(), TrajectoryGroup([])])
    assert not model_dir(tmp_path).exists()


@pytest.mark.parametrize("split", ["..", "", "../other", "/etc"])
def test_split_stays_below_the_trajectories(tmp_path: Path, split: str) -> None:
    with pytest.raises(ValueError, match="split"):
        log(prompted(tmp_path), [make_trajectory()], split)
    assert not (tmp_path / "mail").exists()


@pytest.mark.parametrize(
    "metrics", [{"costs_total": 1.0}, {"costs/cum/all": 1.0}, {"costs/all": 1.0}, {"costs/a": 1, "costs/a/b": 1}]
)
def test_refused_names_leave_nothing_behind(tmp_path: Path, metrics: dict[str, float]) -> None:
    model = prompted(tmp_path)
    with pytest.raises(ValueError, match="costs"):
        log(model, [make_trajectory(metrics={"costs/fine": 1.0})], "train", step=1, metrics=metrics)
    assert not (model_dir(tmp_path) / "trajectories").exists()
    assert rows(tmp_path) == []
    log(model, metrics={"x": 1.0}, split="train", step=1)
    assert metrics_of(rows(tmp_path)[0]) == {"train/x": 1.0}


def test_other_totals_are_written_through(tmp_path: Path) -> None:
    log(prompted(tmp_path), metrics={"time/cum/mine": 5.0}, split="train", step=1)
    assert metrics_of(rows(tmp_path)[0]) == {"time/cum/mine": 5.0}


@pytest.mark.parametrize("value", [None, "1.0", [1.0]])
def test_values_that_are_no_numbers_are_named(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TypeError, match="'x'"):
        log(prompted(tmp_path), metrics={"x": value})
    assert rows(tmp_path) == []


def test_logging_a_step_twice_keeps_both_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = prompted(tmp_path)
    log(model, [make_trajectory(1.0)], step=7)
    with caplog.at_level(logging.WARNING):
        log(model, [make_trajectory(2.0)], step=7)
        log(model, [make_trajectory(3.0)], step=7)
    folder = model_dir(tmp_path) / "trajectories" / "val"
    rewards = {
        path.name: [trajectory.reward for group in read_trajectory_groups_parquet(path) for trajectory in group]
        for path in folder.iterdir()
    }
    assert rewards == {"0007.parquet": [1.0], "0007.1.parquet": [2.0], "0007.2.parquet": [3.0]}
    assert "0007.2.parquet" in caplog.text


def test_half_a_line_of_a_killed_run_does_not_spoil_the_next(tmp_path: Path) -> None:
    model = prompted(tmp_path)
    log(model, metrics={"x": 1.0}, step=1)
    path = model_dir(tmp_path) / "history.jsonl"
    path.write_text(path.read_text() + '{"val/x": 2')
    log(model, metrics={"x": 3.0}, step=3)
    lines = path.read_text().splitlines()
    assert [json.loads(lines[0])["val/x"], lines[1], json.loads(lines[2])["val/x"]] == [1.0, '{"val/x": 2', 3.0]


def test_wall_time_and_gpu_cost_once_per_training_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("art.model.run_log.time", SimpleNamespace(monotonic=lambda: now))
    model = prompted(tmp_path)
    model._run_start_monotonic = 1000.0
    asyncio.run(model.register(FakeLocalBackend(gpu_cost_per_hour_usd=36.0)))
    now = 1010.0
    log(model, metrics={"x": 1.0}, split="train", step=1)
    now = 1015.0
    log(model, metrics={"x": 1.0}, split="val", step=1)
    log(model, metrics={"x": 1.0}, split="train", step=1)
    now = 1030.0
    log(model, metrics={"x": 1.0}, split="train", step=2)
    now = 1040.0
    log(model, metrics={"time/step_wall_s": 1.0, "costs/gpu": 0.5}, split="train", step=3)
    first, evaluation, again, second, third = rows(tmp_path)
    assert (first["time/step_wall_s"], first["costs/gpu"]) == (10.0, pytest.approx(0.1))
    assert "time/step_wall_s" not in evaluation
    assert "time/step_wall_s" not in again
    assert (second["time/step_wall_s"], second["time/cum/wall_s"]) == (20.0, 30.0)
    assert second["costs/cum/gpu"] == pytest.approx(0.3)
    assert second["time/wall_clock_sec"] == 30.0
    assert (third["time/step_wall_s"], third["costs/gpu"]) == (1.0, 0.5)


def test_concurrent_logs_lose_nothing(tmp_path: Path) -> None:
    model = prompted(tmp_path)

    async def run() -> None:
        await asyncio.gather(*(model.log(metrics={"costs/x": 1.0}, split="train", step=step) for step in range(20)))

    asyncio.run(run())
    assert len(rows(tmp_path)) == 20
    assert max(row["costs/cum/x"] for row in rows(tmp_path)) == 20.0


def test_totals_of_two_that_log_for_one_model_add_up(tmp_path: Path) -> None:
    first, second = prompted(tmp_path), prompted(tmp_path)
    first.metrics_builder().add_data(scenario_ids=["a"])
    log(first, metrics={"costs/x": 1.0}, split="train", step=1)
    second.metrics_builder().add_data(scenario_ids=["b"])
    log(second, metrics={"costs/x": 10.0}, split="train", step=1)
    log(first, metrics={"costs/x": 100.0}, split="train", step=2)
    log(first, metrics={"costs/y": 1.0}, split="train", step=3)
    first.metrics_builder().add_data(scenario_ids=["b"])
    log(first, metrics={"costs/x": 0.0}, split="train", step=4)

    assert [row.get("costs/cum/x") for row in rows(tmp_path)] == [1.0, 11.0, 111.0, None, 111.0]
    assert rows(tmp_path)[-1]["data/cum/num_unique_scenarios"] == 2.0
    log(prompted(tmp_path), metrics={"costs/x": 1.0}, split="train", step=5)
    assert rows(tmp_path)[-1]["costs/cum/x"] == 112.0


def test_log_metrics_writes_a_row_as_it_is(tmp_path: Path) -> None:
    prompted(tmp_path)._log_metrics({"reward": 1.0, "loss/train": 2.0}, "train", 4)
    (row,) = rows(tmp_path)
    assert metrics_of(row) == {"train/reward": 1.0, "loss/train": 2.0}
    assert row["step"] == 4


def test_failed_write_of_trajectories_adds_no_costs(tmp_path: Path) -> None:
    model = prompted(tmp_path)
    (model_dir(tmp_path)).mkdir(parents=True)
    (model_dir(tmp_path) / "trajectories").write_text("in the way")
    with pytest.raises(OSError, match="trajectories"):
        log(model, [Trajectory(metrics={"costs/x": 1.0})], "train", step=1)
    assert asyncio.run(model.metrics_builder().flush()) == {}
