import dataclasses
import logging
from types import SimpleNamespace

import pytest

from art.dev.settings import SFTSettings, TrainSettings
from art.dev.train import TrainConfig, rates_of_batches, resolve_sft_settings, resolve_train_settings
from art.errors import ConfigurationError

RATES = SimpleNamespace(learning_rate=5e-6, kl_penalty_coef=0.0)


def sft(learning_rate=1e-4, batch_size="auto"):
    return SimpleNamespace(learning_rate=learning_rate, batch_size=batch_size)


def test_no_options_give_the_defaults():
    assert resolve_train_settings(RATES) == TrainSettings()
    assert dataclasses.asdict(TrainSettings()) == {
        "learning_rate": 5e-6,
        "kl_penalty_coef": 0.0,
        "kl_ref_adapter_path": None,
        "ppo": False,
        "epsilon": 1.0,
        "epsilon_high": 4.0,
        "advantage_balance": 0.0,
        "scale_rewards": True,
        "importance_sampling_level": "token",
        "max_negative_advantage_importance_sampling_weight": None,
        "legacy_negative_advantage_cap": False,
        "mask_prob_ratio": False,
        "kimi_k2_tau": None,
        "precalculate_logprobs": False,
        "allow_training_without_logprobs": False,
        "plot_tensors": False,
        "truncated_importance_sampling": None,
        "scale_learning_rate_by_reward_std_dev": False,
        "logprob_calculation_chunk_size": 1024,
        "num_trajectories_learning_rate_multiplier_power": 0.0,
        "packed_sequence_length": None,
        "grad_accumulation_sequences": None,
        "batch_token_normalization": False,
    }


def test_every_option_reaches_its_setting():
    options = {
        "advantage_balance": -0.5,
        "allow_training_without_logprobs": True,
        "batch_token_normalization": True,
        "epsilon": 0.1,
        "epsilon_high": 0.3,
        "grad_accumulation_sequences": 3,
        "importance_sampling_level": "geometric_average",
        "kimi_k2_tau": 0.7,
        "kl_penalty_coef": 0.2,
        "kl_ref_adapter_path": "/adapters/0003",
        "legacy_negative_advantage_cap": True,
        "logprob_calculation_chunk_size": 8,
        "mask_prob_ratio": True,
        "max_negative_advantage_importance_sampling_weight": 1.05,
        "num_trajectories_learning_rate_multiplier_power": 0.5,
        "packed_sequence_length": 4096,
        "plot_tensors": True,
        "ppo": True,
        "precalculate_logprobs": True,
        "scale_learning_rate_by_reward_std_dev": True,
        "scale_rewards": False,
        "truncated_importance_sampling": 2.0,
    }
    assert set(options) == set(TrainConfig.__annotations__)
    settings = dataclasses.asdict(resolve_train_settings(RATES, options))
    assert settings == {**options, "learning_rate": 5e-6}


@pytest.mark.parametrize(
    ("options", "epsilon", "epsilon_high"),
    [
        ({}, 1.0, 4.0),
        ({"epsilon": 0.2}, 0.2, 4.0),
        ({"epsilon": 0.2, "epsilon_high": 0.3}, 0.2, 0.3),
        ({"epsilon": 0.2, "epsilon_high": None}, 0.2, 0.2),
        ({"epsilon_high": None}, 1.0, 1.0),
        ({"ppo": True}, 0.2, 0.2),
        ({"ppo": True, "epsilon": 0.1}, 0.1, 0.1),
        ({"ppo": True, "epsilon": 0.1, "epsilon_high": 0.4}, 0.1, 0.4),
        ({"ppo": True, "epsilon_high": None}, 0.2, 0.2),
        ({"ppo": False, "epsilon": None}, 1.0, 4.0),
    ],
)
def test_bounds_of_the_ratio_follow_the_loss(options, epsilon, epsilon_high):
    settings = resolve_train_settings(RATES, options)
    assert (settings.epsilon, settings.epsilon_high) == (epsilon, epsilon_high)


@pytest.mark.parametrize(
    ("public", "private", "expected"),
    [
        (0.1, {}, 0.1),
        (0.0, {"kl_penalty_coef": 0.2}, 0.2),
        (0.1, {"kl_penalty_coef": 0.2}, 0.2),
        (0.1, {"kl_penalty_coef": 0.0}, 0.0),
    ],
)
def test_either_penalty_counts_and_the_private_one_wins(public, private, expected):
    config = SimpleNamespace(learning_rate=1e-5, kl_penalty_coef=public)
    assert resolve_train_settings(config, private).kl_penalty_coef == expected


def test_accumulation_comes_from_either_configuration():
    config = SimpleNamespace(learning_rate=1e-5, kl_penalty_coef=0.0, grad_accumulation_sequences=4)
    assert resolve_train_settings(config).grad_accumulation_sequences == 4
    assert resolve_train_settings(config, {"grad_accumulation_sequences": 2}).grad_accumulation_sequences == 2


def test_public_pydantic_configuration_is_taken():
    types = pytest.importorskip("art.types")
    settings = resolve_train_settings(types.TrainConfig(learning_rate=2e-5, kl_penalty_coef=0.3))
    assert (settings.learning_rate, settings.kl_penalty_coef) == (2e-5, 0.3)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("advantage_balance", 1.5, "at least -1 and at most 1"),
        ("advantage_balance", float("nan"), "finite"),
        ("epsilon", -0.1, "at least 0"),
        ("epsilon", "0.2", "a number"),
        ("epsilon", True, "a number"),
        ("importance_sampling_level", "tokens", "did you mean 'token'?"),
        ("kl_penalty_coef", -1, "at least 0"),
        ("logprob_calculation_chunk_size", 0, "an integer, at least 1"),
        ("logprob_calculation_chunk_size", 8.0, "an integer"),
        ("ppo", 1, "True or False"),
        ("truncated_importance_sampling", 0, "above 0"),
        ("kl_ref_adapter_path", "", "not empty"),
    ],
)
def test_bad_value_names_key_value_and_range(key, value, words):
    with pytest.raises(ConfigurationError) as caught:
        resolve_train_settings(RATES, {key: value})
    assert f"_config[{key!r}] is {value!r}" in str(caught.value)
    assert words in str(caught.value)


def test_bad_public_rate_is_refused():
    with pytest.raises(ConfigurationError, match=r"TrainConfig.learning_rate is -1"):
        resolve_train_settings(SimpleNamespace(learning_rate=-1, kl_penalty_coef=0.0))


def test_unknown_key_is_refused_with_the_nearest_one():
    with pytest.raises(ConfigurationError, match=r"'scale_reward' \(did you mean 'scale_rewards'\?\)"):
        resolve_train_settings(RATES, {"scale_reward": True})


def test_penalty_of_older_releases_is_ignored_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        assert resolve_train_settings(RATES, {"beta": 0.04}) == TrainSettings()
    assert "'beta'" in caplog.text
    assert "kl_penalty_coef" in caplog.text


def test_option_without_effect_says_so(caplog):
    with caplog.at_level(logging.WARNING):
        resolve_train_settings(RATES, {"scale_learning_rate_by_reward_std_dev": True})
    assert "no effect" in caplog.text


def test_callers_options_are_left_alone():
    options = {"beta": 0.1, "ppo": True}
    resolve_train_settings(RATES, options)
    assert options == {"beta": 0.1, "ppo": True}


def test_sft_auto_means_two_and_one_rate_serves_all_batches():
    settings = resolve_sft_settings(sft())
    assert settings == SFTSettings(learning_rate=1e-4, batch_size=2)
    assert rates_of_batches(settings, 3) == [1e-4, 1e-4, 1e-4]


def test_sft_rates_go_to_batches_in_order(caplog):
    settings = resolve_sft_settings(sft([1e-4, 2e-4, 3e-4], 5))
    assert settings.batch_size == 5
    assert rates_of_batches(settings, 3) == [1e-4, 2e-4, 3e-4]
    assert "more learning rates" not in caplog.text
    assert rates_of_batches(settings, 2) == [1e-4, 2e-4]
    assert "rates=3 batches=2" in caplog.text


def test_sft_with_too_few_rates_is_refused():
    with pytest.raises(ConfigurationError, match=r"lists 2 rates for 3 batches"):
        rates_of_batches(resolve_sft_settings(sft([1e-4, 2e-4])), 3)


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        (sft([1e-4, -1.0]), {}, r"learning_rate\[1\] is -1.0"),
        (sft(batch_size=0), {}, "batch_size is 0"),
        (sft(batch_size="all"), {}, "batch_size is 'all'"),
        (sft(), {"epochs": 2}, "unknown key in _config: 'epochs'"),
    ],
)
def test_bad_sft_options_are_refused(config, options, words):
    with pytest.raises(ConfigurationError, match=words):
        resolve_sft_settings(config, options)
