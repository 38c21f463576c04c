import json

import pytest

from art.dev import get_openai_server_config
from art.errors import ConfigurationError


def test_defaults_without_an_adapter():
    assert get_openai_server_config("m", "org/base", "/logs/vllm.log") == {
        "log_file": "/logs/vllm.log",
        "server_args": {
            "api_key": "default",
            "lora_modules": None,
            "return_tokens_as_token_ids": True,
            "enable_auto_tool_choice": True,
            "tool_call_parser": "hermes",
        },
        "engine_args": {"model": "org/base", "served_model_name": "m", "generation_config": "vllm"},
    }


@pytest.mark.parametrize(("folder", "name"), [("0007", "m@7"), ("0000", "m@0"), ("12345", "m@12345")])
def test_adapter_is_served_under_name_and_step_and_the_base_under_its_own(folder, name):
    config = get_openai_server_config("m", "org/base", "log", f"/run/checkpoints/{folder}")
    [module] = config["server_args"]["lora_modules"]
    assert json.loads(module) == {"name": name, "path": f"/run/checkpoints/{folder}"}
    assert config["engine_args"]["served_model_name"] == "org/base"


def test_caller_wins_key_by_key():
    config = get_openai_server_config(
        "m",
        "org/base",
        "log",
        "/c/0001",
        {
            "log_file": "mine",
            "server_args": {"api_key": "secret", "port": 8123},
            "engine_args": {"served_model_name": "other"},
        },
    )
    assert config["log_file"] == "mine"
    assert config["server_args"]["api_key"] == "secret"
    assert config["server_args"]["port"] == 8123
    assert config["server_args"]["tool_call_parser"] == "hermes"
    assert config["engine_args"] == {"model": "org/base", "served_model_name": "other", "generation_config": "vllm"}


@pytest.mark.parametrize("path", ["/run/checkpoints/latest", "/run/adapter", "/run/-1", "/run/²"])
def test_folder_that_is_no_step_is_refused(path):
    with pytest.raises(ConfigurationError, match="must be a step"):
        get_openai_server_config("m", "org/base", "log", path)


def test_defaults_are_not_shared_between_calls():
    get_openai_server_config("m", "b", "log")["server_args"]["api_key"] = "changed"
    assert get_openai_server_config("m", "b", "log")["server_args"]["api_key"] == "default"
