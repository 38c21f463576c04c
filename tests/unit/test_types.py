from __future__ import annotations

import logging

import pydantic
import pytest

from art.types import Choice, LocalTrainResult, ServerlessTrainResult, TrainConfig, TrainResult, TrainSFTConfig


def test_defaults() -> None:
    assert TrainConfig().model_dump() == {
        "learning_rate": 5e-6,
        "kl_penalty_coef": 0.0,
        "grad_accumulation_sequences": None,
    }
    assert TrainSFTConfig().model_dump() == {"learning_rate": 5e-5, "batch_size": "auto"}


@pytest.mark.parametrize("config_class", [TrainConfig, TrainSFTConfig])
def test_unknown_settings_are_named_in_a_warning_and_ignored(
    config_class: type[TrainConfig | TrainSFTConfig], caplog: pytest.LogCaptureFixture
) -> None:
    config = config_class.model_validate({"learning_rate": 1e-4, "warmup": 1, "schedule": 2})
    assert config.learning_rate == 1e-4
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "warmup, schedule" in caplog.text
    assert config_class.__name__ in caplog.text


@pytest.mark.parametrize(
    ("keyword", "right"),
    [
        ("num_epochs", r"iterate_dataset\(data, groups_per_step=…, num_epochs=…\)"),
        ("max_steps", r"range\(await model\.get_step\(\)"),
        ("rollouts_per_group", r"art\.TrajectoryGroup\(rollout"),
        ("lr", "learning_rate"),
        ("lerning_rate", "did you mean learning_rate"),
        ("learning_rates", "did you mean learning_rate"),
    ],
)
def test_setting_that_must_be_a_mistake_is_an_error_that_says_what_is_right(keyword: str, right: str) -> None:
    for config_class in (TrainConfig, TrainSFTConfig):
        with pytest.raises(ValueError, match=f"has no setting '{keyword}': .*{right}"):
            config_class.model_validate({keyword: 1})


def test_beta_of_older_releases_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    config = TrainConfig.model_validate({"beta": 0.04, "learning_rate": 2e-5})
    assert config == TrainConfig(learning_rate=2e-5)
    assert len(caplog.records) == 1
    assert "beta=0.04 has no effect" in caplog.text
    assert "kl_penalty_coef" in caplog.text


def test_known_settings_warn_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    TrainConfig(learning_rate=1e-6, kl_penalty_coef=0.1, grad_accumulation_sequences=2)
    assert caplog.records == []


def test_accumulation_below_one_is_refused() -> None:
    with pytest.raises(pydantic.ValidationError):
        TrainConfig(grad_accumulation_sequences=0)


def test_sft_takes_a_rate_for_each_batch() -> None:
    assert TrainSFTConfig(learning_rate=[1e-4, 5e-5], batch_size=4).learning_rate == [1e-4, 5e-5]


def test_results_share_a_base_but_not_their_metrics() -> None:
    local, serverless = LocalTrainResult(step=3, checkpoint_path="/x/0003"), ServerlessTrainResult(step=4)
    local.metrics["loss/train"] = 0.5
    assert isinstance(local, TrainResult)
    assert (serverless.metrics, serverless.artifact_name) == ({}, None)


def test_choice_is_the_one_of_the_openai_client() -> None:
    from openai.types.chat.chat_completion import Choice as OpenAIChoice

    assert Choice is OpenAIChoice
