"""Sums, totals and rates of a step."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from art.metrics import (
    MetricsBuilder,
    is_builder_managed_metric,
    is_cumulative_metric_key,
    to_cumulative_metric_key,
)


def flush(builder: MetricsBuilder) -> dict[str, float]:
    return asyncio.run(builder.flush())


def test_names_of_totals() -> None:
    assert to_cumulative_metric_key("data/step_trainer_tokens") == "data/cum/trainer_tokens"
    assert to_cumulative_metric_key("costs/train/judge") == "costs/cum/train/judge"
    assert is_cumulative_metric_key("costs/cum/all")
    assert not is_cumulative_metric_key("costs/all")
    assert is_builder_managed_metric("throughput/step_actor_idle_s")
    assert is_builder_managed_metric("costs/gpu")
    assert not is_builder_managed_metric("throughput/avg_actor_tok_per_s")
    assert not is_builder_managed_metric("costs/cum/gpu")
    assert not is_builder_managed_metric("reward")


def test_costs_roll_up_and_accumulate() -> None:
    builder = MetricsBuilder("train")
    builder.add_cost("train/judge/o3", 0.25)
    builder.add_cost("train/judge/o3", 0.25)
    builder.add_cost("train/llm", 1.0)
    builder.add_cost("gpu", 2.0)
    first = flush(builder)
    assert {key: value for key, value in first.items() if "/cum/" not in key} == {
        "costs/train/judge/o3": 0.5,
        "costs/train/judge": 0.5,
        "costs/train/llm": 1.0,
        "costs/train": 1.5,
        "costs/gpu": 2.0,
        "costs/all": 3.5,
    }
    builder.add_cost("gpu", 1.0)
    second = flush(builder)
    assert second == {"costs/gpu": 1.0, "costs/all": 1.0, "costs/cum/gpu": 3.0, "costs/cum/all": 4.5}
    assert flush(builder) == {}


def test_times_and_counts_accumulate_but_not_other_throughput() -> None:
    builder = MetricsBuilder("train")
    builder.add_user_timing(step_wall_s=2.0, step_actor_s=1.0, step_eval_s=0.5)
    builder.add_data(step_num_scenarios=3, step_actor_tokens=10)
    builder.add_idle_times(step_trainer_idle_s=0.5, step_actor_idle_s=0.25)
    builder.add_metric("throughput/step_other", 1.0)
    row = flush(builder)
    assert row["time/cum/wall_s"] == 2.0
    assert row["time/cum/eval_s"] == 0.5
    assert row["data/cum/num_scenarios"] == 3.0
    assert row["throughput/cum/trainer_idle_s"] == 0.5
    assert row["throughput/cum/actor_idle_s"] == 0.25
    assert "throughput/cum/other" not in row
    assert row["throughput/avg_actor_tok_per_s"] == 10.0


def test_rates_are_over_the_whole_run_and_only_when_somebody_worked() -> None:
    builder = MetricsBuilder("train")
    builder.add_metric("data/step_trainer_tokens", 100)
    assert "throughput/avg_trainer_tok_per_s" not in flush(builder)  # no seconds yet
    builder.add_metric("data/step_trainer_tokens", 200)
    builder.add_metric("time/step_trainer_s", 4)
    assert flush(builder)["throughput/avg_trainer_tok_per_s"] == 75.0
    builder.add_metric("time/step_eval_s", 1)
    assert "throughput/avg_trainer_tok_per_s" not in flush(builder)


@pytest.mark.parametrize("key", ["reward", "costs/", "costs/cum/all", "time/cum/wall_s", "costs/all"])
def test_reserved_and_bare_names_are_refused(key: str) -> None:
    builder = MetricsBuilder("train")
    with pytest.raises(ValueError, match=key.strip("/")):
        builder.add_metric(key, 1.0)
    assert flush(builder) == {}


@pytest.mark.parametrize(("pending", "added"), [("costs/a/b", "costs/a"), ("costs/a", "costs/a/b")])
def test_a_path_cannot_be_a_sum_and_a_part(pending: str, added: str) -> None:
    builder = MetricsBuilder("train")
    builder.add_metric(pending, 1.0)
    with pytest.raises(ValueError, match=added):
        builder.add_metrics({"costs/fine": 1.0, added: 1.0})
    row = flush(builder)
    assert row["costs/all"] == 1.0
    assert "costs/fine" not in row


def test_views_have_their_own_step_and_share_totals() -> None:
    train = MetricsBuilder("train")
    evaluation = train.for_cost_context("eval")
    same_step = train.for_cost_context("judge", buffer_scope="train")
    train.add_cost("x", 1.0)
    evaluation.add_cost("x", 2.0)
    same_step.add_cost("x", 4.0)
    assert flush(train)["costs/x"] == 5.0
    row = flush(evaluation)
    assert row["costs/x"] == 2.0
    assert row["costs/cum/x"] == 7.0


def test_counts_of_evaluations_stay_out_of_the_totals() -> None:
    train = MetricsBuilder("train")
    train.add_metric("data/step_num_trajectories", 8)
    flush(train)
    evaluation = train.for_cost_context("eval")
    evaluation.add_metric("data/step_num_trajectories", 100)
    assert flush(evaluation) == {"data/step_num_trajectories": 100.0}
    train.add_metric("data/step_num_trajectories", 8)
    assert flush(train)["data/cum/num_trajectories"] == 16.0


def test_scenarios_are_counted_once() -> None:
    builder = MetricsBuilder("train")
    builder.add_data(scenario_ids=["a", "b"])
    assert flush(builder) == {"data/cum/num_unique_scenarios": 2.0}
    builder.add_data(scenario_ids=["b", "c"])
    assert flush(builder) == {"data/cum/num_unique_scenarios": 3.0}


def test_measure_adds_seconds_also_when_the_block_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10.0, 12.5])
    monkeypatch.setattr("art.metrics.time", SimpleNamespace(monotonic=lambda: next(moments)))
    builder = MetricsBuilder("train")
    with pytest.raises(KeyError), builder.measure("time/step_eval_s"):
        raise KeyError
    assert flush(builder)["time/step_eval_s"] == 2.5


def test_active_builder_follows_the_task() -> None:
    builder = MetricsBuilder("train")
    with pytest.raises(LookupError, match="no metrics builder"):
        MetricsBuilder.get_active()
    with builder.activate_context():
        assert MetricsBuilder.get_active() is builder
        token = builder.for_cost_context("eval").activate()
        assert MetricsBuilder.get_active().cost_context == "eval"
        token.var.reset(token)
        assert MetricsBuilder.get_active() is builder
    with pytest.raises(LookupError):
        MetricsBuilder.get_active()


def test_state_survives_json_and_drops_what_is_pending() -> None:
    builder = MetricsBuilder("train")
    builder.add_cost("x", 1.5)
    builder.add_data(scenario_ids=["b", "a"])
    flush(builder)
    state = json.loads(json.dumps(builder.state_dict()))
    assert state == {"cum_state": {"costs/cum/x": 1.5, "costs/cum/all": 1.5}, "unique_scenario_ids": ["a", "b"]}
    resumed = MetricsBuilder("train")
    resumed.add_cost("lost", 9.0)
    resumed.load_state_dict(state)
    assert flush(resumed) == {}
    resumed.add_cost("x", 1.0)
    assert flush(resumed)["costs/cum/x"] == 2.5


def test_threads_lose_nothing() -> None:
    builder = MetricsBuilder("train")

    def add() -> None:
        for _ in range(500):
            builder.add_cost("x", 1.0)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert flush(builder)["costs/x"] == 2000.0


def test_cost_of_an_answer_lands_in_the_context_with_registered_prices() -> None:
    builder = MetricsBuilder("train")
    builder.register_model_pricing("judge-1", prompt_per_million=1.0, completion_per_million=10.0)
    answer: dict[str, Any] = {"usage": {"prompt_tokens": 1_000_000, "completion_tokens": 100_000}}
    view = builder.for_cost_context("eval", buffer_scope="train")
    assert view.add_response_cost("judge", answer, provider="openai", model_name="judge-1") == 2.0
    assert flush(builder)["costs/eval/judge"] == 2.0


def test_extractor_is_found_whatever_the_case() -> None:
    builder = MetricsBuilder("train")
    builder.register_cost_extractor("Acme", lambda answer: answer["price"])
    assert builder.add_response_cost("judge", {"price": 3}, provider=" ACME", model_name="any") == 3.0


@pytest.mark.parametrize("context", ["", "/", "a/", " a"])
def test_unusable_cost_context_is_refused(context: str) -> None:
    with pytest.raises(ValueError, match="cost context"):
        MetricsBuilder(context)
