import dataclasses

import pytest

from art.dev.serving import ServingArgs, resolve_serving_settings
from art.dev.settings import ServingSettings
from art.errors import ConfigurationError


def test_defaults():
    assert dataclasses.asdict(resolve_serving_settings(None, dedicated=False, environ={})) == {
        "inference_restarts": 2,
        "restart_window_s": 600.0,
        "adapter_reload_timeout_s": 120.0,
        "server_start_timeout_s": 300.0,
        "health_interval_s": 30.0,
        "health_timeout_s": 5.0,
        "max_logprob_gap": None,
        "pause_timeout_s": 300.0,
        "pause_mode": None,
        "max_live_adapters": 4,
        "rollout_wait_s": 600.0,
        "save_optimizer": True,
        "share_gpu": False,
    }


def test_dedicated_server_may_take_longer_to_start():
    assert resolve_serving_settings({}, dedicated=True, environ={}).server_start_timeout_s == 1200.0


def test_typed_dictionary_and_settings_have_the_same_keys():
    assert set(ServingArgs.__annotations__) == {field.name for field in dataclasses.fields(ServingSettings)}


def test_environment_counts_where_the_section_is_silent():
    environ = {
        "ART_SERVER_TIMEOUT": "11",
        "ART_DEDICATED_VLLM_TIMEOUT": "12",
        "ART_SERVER_MONITOR_TIMEOUT": "13",
        "ART_ADAPTER_RELOAD_TIMEOUT": "14",
    }
    shared = resolve_serving_settings({}, dedicated=False, environ=environ)
    assert (shared.server_start_timeout_s, shared.health_timeout_s, shared.adapter_reload_timeout_s) == (11, 13, 14)
    assert resolve_serving_settings({}, dedicated=True, environ=environ).server_start_timeout_s == 12


def test_section_wins_over_the_environment():
    settings = resolve_serving_settings(
        {"adapter_reload_timeout_s": 7}, dedicated=False, environ={"ART_ADAPTER_RELOAD_TIMEOUT": "never"}
    )
    assert settings.adapter_reload_timeout_s == 7.0


def test_bad_variable_is_an_error_with_name_and_value():
    with pytest.raises(ConfigurationError, match=r"ART_ADAPTER_RELOAD_TIMEOUT is 'never'"):
        resolve_serving_settings({}, dedicated=False, environ={"ART_ADAPTER_RELOAD_TIMEOUT": "never"})


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("inference_restarts", -1, "an integer, at least 0"),
        ("inference_restarts", True, "an integer"),
        ("restart_window_s", 0, "above 0"),
        ("health_timeout_s", "5", "a number"),
        ("max_logprob_gap", 0.0, "above 0"),
        ("pause_mode", "abort", "one of 'keep', 'wait'"),
        ("max_live_adapters", 0, "at least 1"),
        ("rollout_wait_s", float("inf"), "finite"),
        ("save_optimizer", None, "True or False"),
    ],
)
def test_bad_value_names_key_value_and_range(key, value, words):
    with pytest.raises(ConfigurationError) as caught:
        resolve_serving_settings({key: value}, dedicated=False, environ={})
    assert f"_internal_config['serving'][{key!r}] is {value!r}" in str(caught.value)
    assert words in str(caught.value)


def test_unknown_key_is_refused_with_the_nearest_one():
    with pytest.raises(ConfigurationError, match=r"'max_live_adapter' \(did you mean 'max_live_adapters'\?\)"):
        resolve_serving_settings({"max_live_adapter": 2}, dedicated=False, environ={})
