import argparse
import json
from enum import Enum
from pathlib import Path

import pytest

from art.errors import ConfigurationError
from art.vllm.cli_args import keep_known_args, option_strings, render_cli_args


class OldStyle(str, Enum):  # noqa: UP042 - transformers' enums are of this kind, and print as their member's name
    FUSED = "fused"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"max_model_len": 1024}, ["--max-model-len=1024"]),
        ({"gpu_memory_utilization": 0.8}, ["--gpu-memory-utilization=0.8"]),
        ({"enforce_eager": True}, ["--enforce-eager"]),
        ({"quantization": None}, []),
        ({"download_dir": Path("/models")}, ["--download-dir=/models"]),
        ({"model": "a b=c"}, ["--model=a b=c"]),
        ({"root_path": "-x"}, ["--root-path=-x"]),
        ({"limit_mm_per_prompt": {"image": 2}}, ['--limit-mm-per-prompt={"image": 2}']),
        ({"optim": OldStyle.FUSED}, ["--optim=fused"]),
        ({"allowed": [OldStyle.FUSED]}, ["--allowed=fused"]),
        ({"scheduler_cls": argparse.ArgumentParser}, ["--scheduler-cls=argparse.ArgumentParser"]),
        ({"dtype": "torch.bfloat16"}, ["--dtype=bfloat16"]),
        ({"served_model_name": ["a"]}, ["--served-model-name=a"]),
        ({"served_model_name": ["a", "b"]}, ["--served-model-name", "a", "b"]),
        ({"lora_modules": []}, []),
        ({"lora_modules": ['{"name": "m@1", "path": "/p"}']}, ['--lora-modules={"name": "m@1", "path": "/p"}']),
        (
            {"lora_modules": [{"name": "m@1", "path": "/p"}, {"name": "m@2", "path": "/q"}]},
            ["--lora-modules", '{"name": "m@1", "path": "/p"}', '{"name": "m@2", "path": "/q"}'],
        ),
        ({"middleware": ["a.b", "c.d"]}, ["--middleware=a.b", "--middleware=c.d"]),
        ({"allowed_origins": ["*", "x"]}, ['--allowed-origins=["*", "x"]']),
        ({"allowed_origins": '["*"]'}, ['--allowed-origins=["*"]']),
        ({"port": 0}, ["--port=0"]),
    ],
)
def test_value_is_rendered_as_vllm_reads_it(args, expected):
    assert render_cli_args(args) == expected


def test_order_is_kept_and_empty_is_empty():
    assert render_cli_args({}) == []
    assert render_cli_args({"b": 1, "a": True}) == ["--b=1", "--a"]


def test_false_becomes_the_opposite_switch_where_there_is_one(caplog):
    known = frozenset({"--enable-prefix-caching", "--no-enable-prefix-caching", "--headless"})
    with caplog.at_level("INFO"):
        rendered = render_cli_args({"enable_prefix_caching": False, "headless": False}, known_options=known)
    assert rendered == ["--no-enable-prefix-caching"]
    assert "headless=False is left out" in caplog.text
    assert "enable_prefix_caching" not in caplog.text


def test_false_is_left_out_when_the_parser_is_unknown():
    assert render_cli_args({"enable_lora": False}) == []


def test_keys_that_the_parser_lacks_are_dropped_with_one_warning(caplog):
    rendered = render_cli_args(
        {"use_v2_block_manager": False, "max_loras": 2, "num_scheduler_steps": 1},
        known_options=frozenset({"--max-loras"}),
    )
    assert rendered == ["--max-loras=2"]
    assert len(caplog.records) == 1
    assert caplog.records[0].levelname == "WARNING"
    assert "num_scheduler_steps, use_v2_block_manager" in caplog.text


def test_value_without_a_form_is_an_error_that_names_the_key():
    with pytest.raises(ConfigurationError, match="compilation_config"):
        render_cli_args({"compilation_config": {"x": object()}})
    with pytest.raises(ConfigurationError, match="served_model_name"):
        render_cli_args({"served_model_name": ["a", "-b"]})


def test_known_arguments_are_kept_in_order(caplog):
    assert keep_known_args({"b": 1, "x": 2, "a": 3}, {"a", "b"}) == {"b": 1, "a": 3}
    assert "left out: x" in caplog.text
    caplog.clear()
    assert keep_known_args({"a": 1}, {"a"}) == {"a": 1}
    assert not caplog.records


def test_option_strings_hold_both_switches():
    parser = argparse.ArgumentParser()
    parser.add_argument("--eager", action=argparse.BooleanOptionalAction)
    parser.add_argument("--model", "-m")
    assert option_strings(parser) == {"-h", "--help", "--eager", "--no-eager", "--model", "-m"}


def test_rendered_json_survives_the_way():
    value = {"a": {"b": [1, "x=y", 'qu"ote']}}
    [option] = render_cli_args({"hf_overrides": value})
    assert json.loads(option.split("=", 1)[1]) == value
