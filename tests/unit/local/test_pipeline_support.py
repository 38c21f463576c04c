"""What a `LocalBackend` tells a pipeline."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

import art
from art.errors import LocalServingUnavailableError
from art.inference.gate import ServingGate
from art.local.pipeline_support import check_options, describe_serving, work_done

OPTIONS = {
    "learning_rate": 1e-5,
    "loss_fn": "cispo",
    "loss_fn_config": None,
    "normalize_advantages": True,
    "adam_params": None,
}


def make_model(**config: Any) -> art.TrainableModel[Any, Any]:
    return art.TrainableModel(name="agent", project="p", base_model="none", _internal_config=config or None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"), [("loss_fn", "sum"), ("loss_fn_config", {"clip": 1}), ("adam_params", {"beta1": 0.5})]
)
def test_what_training_would_refuse_is_refused_before(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        check_options(make_model(), {**OPTIONS, name: value})


def test_shared_mode_is_warned_of_and_dedicated_mode_is_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_options(make_model(trainer_gpu_ids=[0], inference_gpu_ids=[1]), OPTIONS)
        assert not caplog.records
        check_options(make_model(), {**OPTIONS, "loss_fn": "ppo"})
    assert ["rollouts pause while a step is trained" in record.getMessage() for record in caplog.records] == [True]


def test_the_server_is_described_in_words() -> None:
    gate = ServingGate()
    hosted: Any = SimpleNamespace(gate=gate, address=("127.0.0.1", 8000), served_step=3)
    assert describe_serving(hosted) == "127.0.0.1:8000, serves step 3, open to rollouts"
    gate.close("killed by SIGKILL")
    assert describe_serving(hosted) == "127.0.0.1:8000, serves step 3, rollouts wait: killed by SIGKILL"
    gate.fail(LocalServingUnavailableError("gone for good"))
    assert describe_serving(hosted) == "127.0.0.1:8000, given up: gone for good"


@pytest.mark.asyncio
@pytest.mark.parametrize(("counted", "tokens"), [(17.0, 17.0), (None, 0.0)])
async def test_tokens_and_rows_are_counted(counted: float | None, tokens: float) -> None:
    async def tokens_processed() -> float | None:
        return counted

    hosted: Any = SimpleNamespace(actor=SimpleNamespace(tokens_processed=tokens_processed), rows_trained=4)
    assert await work_done(hosted) == (tokens, 4.0)
