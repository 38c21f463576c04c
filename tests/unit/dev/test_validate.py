from pathlib import Path

import pytest

from art.dev.enums import SchedulerType
from art.dev.model import InternalModelConfig
from art.dev.validate import (
    is_dedicated_mode,
    validate_dedicated_config,
    validate_gpu_ids,
    validate_internal_config,
    validate_server_config,
)
from art.errors import ConfigurationError

TWO_GPUS = {"trainer_gpu_ids": [0], "inference_gpu_ids": [1]}


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {
            "init_args": {"gpu_memory_utilization": 0.775, "max_seq_length": 8192, "dtype": object()},
            "engine_args": {"enforce_eager": True, "gpu_memory_utilization": 0.8, "num_scheduler_steps": 1},
        },
        {"peft_args": {"r": 16, "lora_alpha": 32, "lora_dropout": 0, "target_modules": ("q_proj",)}},
        {"trainer_args": {"lr_scheduler_type": SchedulerType.COSINE, "logging_steps": 1, "output_dir": Path("/x")}},
        {"chat_template_kwargs": {"enable_thinking": False}, "chat_template_content_format": "auto"},
        {"tinker_args": None, "tinker_native_args": None, "allow_unvalidated_arch": True},
        {"serving": {"max_live_adapters": 3}, "engine_args": {"max_cpu_loras": 4, "max_loras": 2}},
        TWO_GPUS,
    ],
)
def test_what_scripts_write_is_accepted(config, caplog):
    validate_internal_config(config)
    assert not caplog.records


def test_unknown_top_level_keys_are_all_named_with_the_nearest_known_one():
    with pytest.raises(ConfigurationError) as caught:
        validate_internal_config({"engine_arg": {}, "xyzzy": 1})
    assert "'engine_arg' (did you mean 'engine_args'?)" in str(caught.value)
    assert "'xyzzy'" in str(caught.value)
    assert "trainer_gpu_ids" in str(caught.value)


def test_unknown_key_of_a_section_is_passed_on_with_a_warning(caplog):
    validate_internal_config({"trainer_args": {"learning_rat": 1e-5}, "engine_args": {"some_future_switch": True}})
    assert "'learning_rat'; did you mean 'learning_rate'?" in caplog.text
    assert "'some_future_switch'" in caplog.text


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"peft_args": {"r": "eight"}}, "_internal_config['peft_args']['r'] is 'eight'"),
        ({"peft_args": {"r": True}}, "['r'] is True"),
        ({"init_args": {"load_in_4bit": "yes"}}, "['load_in_4bit'] is 'yes'"),
        ({"engine_args": {"limit_mm_per_prompt": {"image": "two"}}}, "['limit_mm_per_prompt']"),
        ({"engine_args": [1]}, "must be a dictionary"),
        ({"serving": 3}, "must be a dictionary"),
        ({"trainer_gpu_ids": "0", "inference_gpu_ids": [1]}, "['trainer_gpu_ids'] is '0'"),
        ({"chat_template_content_format": "json"}, "['chat_template_content_format'] is 'json'"),
        ({"rollout_weights_mode": "full"}, "['rollout_weights_mode'] is 'full'"),
    ],
)
def test_wrong_type_names_key_and_value(config, words):
    with pytest.raises(ConfigurationError) as caught:
        validate_internal_config(config)
    assert words in str(caught.value)


def test_wrong_secret_is_not_shown():
    with pytest.raises(ConfigurationError) as caught:
        validate_internal_config({"trainer_args": {"hub_token": 12345}})
    assert "12345" not in str(caught.value)
    assert "hub_token" in str(caught.value)


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("peft_args", "r", 0, "at least 1"),
        ("peft_args", "r", 513, "at most 512"),
        ("peft_args", "lora_dropout", 1.5, "at most 1"),
        ("engine_args", "gpu_memory_utilization", 1.2, "above 0 and at most 1"),
        ("engine_args", "max_loras", 0, "at least 1"),
        ("init_args", "max_seq_length", -1, "at least 2"),
        ("trainer_args", "gradient_accumulation_steps", 0, "at least 1"),
        ("trainer_args", "learning_rate", -1e-5, "at least 0"),
    ],
)
def test_value_out_of_range_names_key_value_and_range(section, key, value, words):
    with pytest.raises(ConfigurationError) as caught:
        validate_internal_config({section: {key: value}})
    assert f"[{section!r}][{key!r}] is {value!r}" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"chat_template": "a", "chat_template_path": "b"}, ["chat_template", "chat_template_path"]),
        ({"init_args": {"load_in_4bit": True, "load_in_8bit": True}}, ["load_in_4bit", "load_in_8bit"]),
        ({"init_args": {"full_finetuning": True}}, ["full_finetuning", "LoRA"]),
        ({"trainer_args": {"bf16": True, "fp16": True}}, ["bf16", "fp16"]),
        ({"engine_args": {"enable_lora": False}}, ["enable_lora"]),
        ({"engine_args": {"max_loras": 8, "max_cpu_loras": 6}}, ["max_cpu_loras", "6", "max_loras", "8"]),
        ({"engine_args": {"max_cpu_loras": 4}}, ["max_cpu_loras", "max_live_adapters", "4"]),
        ({**TWO_GPUS, "engine_args": {"tensor_parallel_size": 2}}, ["tensor_parallel_size", "inference_gpu_ids"]),
    ],
)
def test_contradiction_names_both_sides(config, words):
    with pytest.raises(ConfigurationError) as caught:
        validate_internal_config(config)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        {"tinker_args": {"renderer_name": "x"}},
        {"tinker_native_args": {"renderer_name": "x"}},
        {"rollout_weights_mode": "merged"},
    ],
)
def test_what_only_other_releases_have_is_not_implemented(config):
    with pytest.raises(NotImplementedError, match=next(iter(config))):
        validate_internal_config(config)


def test_validation_changes_nothing():
    config: InternalModelConfig = {"peft_args": {"r": 4}, "serving": {"inference_restarts": 1}}
    validate_internal_config(config)
    assert config == {"peft_args": {"r": 4}, "serving": {"inference_restarts": 1}}


@pytest.mark.parametrize(
    ("config", "dedicated"),
    [
        ({}, False),
        ({"trainer_gpu_ids": [0]}, False),
        (TWO_GPUS, True),
        ({"trainer_gpu_ids": [], "inference_gpu_ids": []}, True),
    ],
)
def test_both_keys_present_is_dedicated_mode(config, dedicated):
    assert is_dedicated_mode(config) is dedicated


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"trainer_gpu_ids": []}, "trainer_gpu_ids is given and inference_gpu_ids is not"),
        ({"inference_gpu_ids": [1]}, "inference_gpu_ids is given and trainer_gpu_ids is not"),
        ({"trainer_gpu_ids": [], "inference_gpu_ids": []}, "trainer_gpu_ids is empty"),
        ({"trainer_gpu_ids": [0], "inference_gpu_ids": []}, "inference_gpu_ids is empty"),
        ({"trainer_gpu_ids": [0, 1], "inference_gpu_ids": [1, 2]}, r"share GPU \[1\]"),
        ({"trainer_gpu_ids": [1], "inference_gpu_ids": [2, 3]}, "several GPUs is not supported"),
        ({"trainer_gpu_ids": [1, 2], "inference_gpu_ids": [0]}, "must start with GPU 0"),
        ({"trainer_gpu_ids": [0, 2], "inference_gpu_ids": [1]}, r"must be \[0, 1\]"),
        (
            {**TWO_GPUS, "init_args": {"fast_inference": True}, "engine_args": {"enable_sleep_mode": True}},
            "fast_inference",
        ),
        ({**TWO_GPUS, "engine_args": {"enable_sleep_mode": True}}, "enable_sleep_mode"),
        ({**TWO_GPUS, "serving": {"share_gpu": True}}, "share no GPU"),
        ({"serving": {"share_gpu": True}}, "without trainer_gpu_ids and inference_gpu_ids"),
    ],
)
def test_dedicated_mode_is_checked_in_order(config, words):
    with pytest.raises(ValueError, match=words):
        validate_dedicated_config(config)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"engine_args": {"enable_sleep_mode": True}, "init_args": {"fast_inference": True}},
        TWO_GPUS,
        {"trainer_gpu_ids": [0, 1], "inference_gpu_ids": [5]},
        {"trainer_gpu_ids": [0], "inference_gpu_ids": [0], "serving": {"share_gpu": True}},
        {**TWO_GPUS, "init_args": {"fast_inference": False}, "engine_args": {"enable_sleep_mode": False}},
    ],
)
def test_good_dedicated_or_shared_configuration_passes(config):
    validate_dedicated_config(config)


def test_gpus_must_exist():
    validate_gpu_ids({}, 0)
    validate_gpu_ids(TWO_GPUS, 2)
    with pytest.raises(ConfigurationError, match=r"inference_gpu_ids is \[1\], but GPU \[1\].*1 GPUs are visible"):
        validate_gpu_ids(TWO_GPUS, 1)
    with pytest.raises(ConfigurationError, match="trainer_gpu_ids"):
        validate_gpu_ids({"trainer_gpu_ids": [-1], "inference_gpu_ids": [0]}, 2)


@pytest.mark.parametrize("config", [5, "serving", [("serving", {})]])
def test_what_is_no_dictionary_is_refused(config):
    with pytest.raises(ConfigurationError, match="_internal_config must be a dictionary"):
        validate_internal_config(config)
    with pytest.raises(ConfigurationError, match="_openai_client_config must be a dictionary"):
        validate_server_config(config)
