"""What an engine is started with."""

from __future__ import annotations

from typing import Any

import pytest

from art.errors import ConfigurationError
from art.vllm.engine import EnginePlan, plan_engine


def plan(max_live_adapters: int = 4, overrides: dict[str, Any] | None = None, **engine_args: Any) -> EnginePlan:
    return plan_engine(
        engine_args={"model": "tiny", **engine_args},
        server_config={"engine_args": {"model": "of the server", "served_model_name": "tiny"}},
        overrides=overrides or {},
        max_live_adapters=max_live_adapters,
        has_cuda=False,
        cpu_threads=1,
    )


def test_every_live_step_and_the_next_one_have_a_slot() -> None:
    engine_args = plan(max_live_adapters=4).engine_args
    assert (engine_args["max_loras"], engine_args["max_cpu_loras"], engine_args["enable_lora"]) == (5, 7, True)


def test_fewer_slots_than_live_steps_are_taken() -> None:
    engine_args = plan(max_live_adapters=4, max_loras=2).engine_args
    assert (engine_args["max_loras"], engine_args["max_cpu_loras"]) == (2, 6)


def test_an_engine_that_cannot_hold_the_live_steps_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"max_cpu_loras'.=4 must be above .*=4"):
        plan(max_live_adapters=4, max_cpu_loras=4)


def test_what_the_caller_gave_to_the_server_wins() -> None:
    engine_args = plan(overrides={"max_loras": 8}).engine_args
    assert (engine_args["model"], engine_args["served_model_name"], engine_args["max_loras"]) == ("tiny", "tiny", 8)
