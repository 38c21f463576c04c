"""What `Model.log` is given of any content can be read back from the model's folder, whole."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from art.metrics import MetricsBuilder
from art.model import METRIC_SECTIONS, METRIC_SPLITS, Model
from art.trajectories import TrajectoryGroup
from art.utils.trajectory_logging import read_trajectory_groups_parquet
from tests.support.logged_groups import groups

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda name: "/" not in name and not name.startswith("costs_") and name not in METRIC_SECTIONS | METRIC_SPLITS
)
values = st.booleans() | st.integers(-(2**60), 2**60) | st.floats()
entries = st.tuples(st.sampled_from(["train", "val", "other"]), st.dictionaries(names, values, max_size=4))
SETTINGS = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def history_of(model: Model[Any, Any]) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    path = model._model_dir() / "history.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line, parse_constant=refuse) for line in lines]


@SETTINGS
@given(logged=st.lists(entries, max_size=4))
def test_every_metric_is_in_the_row_of_its_call(
    tmp_path_factory: pytest.TempPathFactory, logged: list[tuple[str, dict[str, float]]]
) -> None:
    model = Model(name="m", project="p", base_path=str(tmp_path_factory.mktemp("art")))

    async def run() -> None:
        for step, (split, metrics) in enumerate(logged):
            await model.log(split=split, metrics=metrics, step=step)

    asyncio.run(run())

    expected = []
    for step, (split, metrics) in enumerate(logged):
        row = {f"{split}/{name}": float(value) for name, value in metrics.items() if not math.isnan(value)}
        finite = {name: value if math.isfinite(value) else None for name, value in row.items()}
        if finite:
            expected.append({**finite, "step": step, "training_step": step})
    found = history_of(model)
    for row in found:
        assert row.pop("recorded_at")
        assert row.pop("time/wall_clock_sec") >= 0
    assert found == expected


@SETTINGS
@given(
    costs=st.lists(
        st.dictionaries(st.sampled_from("abc"), st.integers(0, 1000).map(float), min_size=1), min_size=1, max_size=4
    )
)
def test_totals_are_the_sums_over_all_rows_however_often_the_run_is_taken_up_again(
    tmp_path_factory: pytest.TempPathFactory, costs: list[dict[str, float]]
) -> None:
    folder = str(tmp_path_factory.mktemp("art"))

    async def run() -> Model[Any, Any]:
        for step, given_costs in enumerate(costs):
            model = Model(name="m", project="p", base_path=folder)  # a new run
            metrics = {f"costs/{name}": value for name, value in given_costs.items()}
            await model.log(split="train", metrics=metrics, step=step)
        return model

    model = asyncio.run(run())

    total = sum(value for given_costs in costs for value in given_costs.values())
    assert history_of(model)[-1]["costs/cum/all"] == total
    state = (model.read_state() or {})["_metrics_builder_state"]
    fresh = MetricsBuilder("train")
    fresh.load_state_dict(state)
    assert fresh.state_dict() == state


@settings(
    SETTINGS,
    phases=[Phase.generate],
    max_examples=10,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(first=st.lists(groups, max_size=2), second=st.lists(groups, max_size=2))
def test_trajectories_of_a_step_logged_twice_are_both_there(
    tmp_path_factory: pytest.TempPathFactory, first: list[TrajectoryGroup], second: list[TrajectoryGroup]
) -> None:
    model = Model(name="m", project="p", base_path=str(tmp_path_factory.mktemp("art")))
    for group in [*first, *second]:
        # Reserved or contradictory names are refused, which has tests of its own.
        group.metrics = {}
        for trajectory in group:
            trajectory.metrics = {"turns": 1}

    async def run() -> None:
        await model.log(first, split="val", step=2)
        await model.log(second, split="val", step=2)

    asyncio.run(run())

    folder = model._model_dir() / "trajectories" / "val"
    for name, written in (("0002.parquet", first), ("0002.1.parquet", second)):
        read = read_trajectory_groups_parquet(folder / name)
        assert [group.model_dump() for group in read] == [group.model_dump() for group in written]
