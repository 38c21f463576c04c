import json
import logging
import struct

import pytest

from art.dev.enums import OptimizerNames
from art.dev.get_model_config import get_model_config
from art.errors import ConfigurationError

DEFAULT_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
UNIPROC = "vllm.v1.executor.uniproc_executor.UniProcExecutor"


class FakeDtype:
    """Prints like a `torch.dtype`."""

    def __str__(self):
        return "torch.bfloat16"


def write_checkpoint(model_dir, step, *, complete=True):
    folder = model_dir / "checkpoints" / f"{step:04d}"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8}))
    if complete:
        header = json.dumps({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
        (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"x")
    return folder


def test_nothing_given_is_all_defaults(tmp_path):
    assert get_model_config("org/base", str(tmp_path), None) == {
        "init_args": {
            "load_in_4bit": True,
            "max_seq_length": 32768,
            "model_name": "org/base",
            "fast_inference": False,
        },
        "engine_args": {
            "allowed_local_media_path": "/tmp",
            "enable_sleep_mode": True,
            "generation_config": "vllm",
            "model": "org/base",
        },
        "peft_args": {
            "lora_alpha": 16,
            "r": 8,
            "random_state": 3407,
            "use_gradient_checkpointing": "unsloth",
            "target_modules": DEFAULT_MODULES,
        },
        "trainer_args": {
            "adam_beta1": 0.9,
            "adam_beta2": 0.99,
            "disable_tqdm": True,
            "gradient_accumulation_steps": 1,
            "gradient_checkpointing": True,
            "learning_rate": 5e-6,
            "logging_steps": 1,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.1,
            "num_generations": 2,
            "optim": "paged_adamw_8bit",
            "output_dir": str(tmp_path),
            "per_device_train_batch_size": 2,
            "report_to": "none",
            "save_strategy": "no",
            "weight_decay": 0.1,
        },
        "tinker_args": None,
    }


def test_dedicated_engine_never_sleeps_and_keeps_the_gpu_ids(tmp_path):
    completed = get_model_config("org/base", str(tmp_path), {"trainer_gpu_ids": [0], "inference_gpu_ids": [1]})
    assert completed["engine_args"]["enable_sleep_mode"] is False
    assert "fast_inference" not in completed["init_args"]
    assert (completed["trainer_gpu_ids"], completed["inference_gpu_ids"]) == ([0], [1])


def test_caller_wins_key_by_key(tmp_path):
    completed = get_model_config(
        "org/base",
        str(tmp_path),
        {
            "init_args": {"max_seq_length": 4096, "load_in_4bit": False, "model_name": "/local/base"},
            "engine_args": {"enable_sleep_mode": False, "num_scheduler_steps": 1},
            "peft_args": {"target_modules": ["q_proj"]},
            "trainer_args": {"weight_decay": 0.0},
        },
    )
    assert completed["init_args"]["max_seq_length"] == 4096
    assert completed["init_args"]["load_in_4bit"] is False
    assert completed["init_args"]["model_name"] == "/local/base"
    assert completed["engine_args"]["enable_sleep_mode"] is False
    assert completed["engine_args"]["num_scheduler_steps"] == 1
    assert completed["engine_args"]["model"] == "org/base"
    assert completed["peft_args"]["target_modules"] == ["q_proj"]
    assert completed["trainer_args"]["weight_decay"] == 0.0
    assert completed["trainer_args"]["max_grad_norm"] == 0.1


def test_result_shares_nothing_with_the_caller_or_the_defaults(tmp_path):
    config = {"peft_args": {"target_modules": ["q_proj"]}, "serving": {"max_live_adapters": 2}}
    completed = get_model_config("org/base", str(tmp_path), config)
    completed["peft_args"]["target_modules"].append("k_proj")
    completed["serving"]["max_live_adapters"] = 9
    assert config == {"peft_args": {"target_modules": ["q_proj"]}, "serving": {"max_live_adapters": 2}}
    get_model_config("org/base", str(tmp_path), None)["peft_args"]["target_modules"].clear()
    assert get_model_config("org/base", str(tmp_path), None)["peft_args"]["target_modules"] == DEFAULT_MODULES


def test_newer_keys_are_carried(tmp_path):
    config = {
        "rollout_weights_mode": "lora",
        "chat_template": "{{ messages }}",
        "chat_template_kwargs": {"enable_thinking": False},
        "chat_template_content_format": "string",
        "chat_template_tool_schema_format": "vllm_openai",
        "allow_unvalidated_arch": True,
        "serving": {"inference_restarts": 0},
    }
    completed = get_model_config("org/base", str(tmp_path), config)
    assert {key: completed[key] for key in config} == config


def test_newest_complete_checkpoint_replaces_the_model_even_the_callers(tmp_path):
    write_checkpoint(tmp_path, 2)
    newest = write_checkpoint(tmp_path, 10)
    write_checkpoint(tmp_path, 11, complete=False)
    completed = get_model_config("org/base", str(tmp_path), {"init_args": {"model_name": "/local/base"}})
    assert completed["init_args"]["model_name"] == str(newest)
    assert completed["engine_args"]["model"] == "org/base"


def test_old_share_of_the_gpu_goes_to_the_engine_unless_it_has_one(tmp_path):
    old = {"init_args": {"gpu_memory_utilization": 0.775}}
    assert get_model_config("b", str(tmp_path), old)["engine_args"]["gpu_memory_utilization"] == 0.775
    both = {**old, "engine_args": {"gpu_memory_utilization": 0.5}}
    assert get_model_config("b", str(tmp_path), both)["engine_args"]["gpu_memory_utilization"] == 0.5


def test_a_server_on_the_trainers_gpu_leaves_it_half_of_the_memory(tmp_path):
    shared = {"trainer_gpu_ids": [0], "inference_gpu_ids": [0], "serving": {"share_gpu": True}}
    assert get_model_config("b", str(tmp_path), shared)["engine_args"]["gpu_memory_utilization"] == 0.45
    told = {**shared, "engine_args": {"gpu_memory_utilization": 0.3}}
    assert get_model_config("b", str(tmp_path), told)["engine_args"]["gpu_memory_utilization"] == 0.3
    apart = {"trainer_gpu_ids": [0], "inference_gpu_ids": [1]}
    assert "gpu_memory_utilization" not in get_model_config("b", str(tmp_path), apart)["engine_args"]


def test_fast_inference_is_ignored_with_a_warning(tmp_path, caplog):
    completed = get_model_config("b", str(tmp_path), {"init_args": {"fast_inference": True}})
    assert completed["init_args"]["fast_inference"] is False
    assert "fast_inference" in caplog.text


@pytest.mark.parametrize(
    ("rank", "given", "expected"),
    [
        (8, None, None),
        (16, None, None),
        (17, None, 32),
        (32, None, 32),
        (100, None, 128),
        (32, 64, 64),
        (64, 32, 64),
        (8, 24, 32),
    ],
)
def test_engine_takes_the_adapters_rank(tmp_path, rank, given, expected):
    engine = {} if given is None else {"max_lora_rank": given}
    completed = get_model_config("b", str(tmp_path), {"peft_args": {"r": rank}, "engine_args": engine})
    assert completed["engine_args"].get("max_lora_rank") == expected


def test_raising_a_rank_that_the_caller_gave_is_a_warning(tmp_path, caplog):
    get_model_config("b", str(tmp_path), {"peft_args": {"r": 64}, "engine_args": {"max_lora_rank": 32}})
    assert "raised from 32 to 64" in caplog.text


def test_another_width_replaces_the_default_of_four_bits(tmp_path):
    for width in ("load_in_8bit", "load_in_16bit"):
        assert get_model_config("b", str(tmp_path), {"init_args": {width: True}})["init_args"]["load_in_4bit"] is False


def test_dtype_becomes_a_name(tmp_path):
    completed = get_model_config(
        "b", str(tmp_path), {"init_args": {"dtype": FakeDtype()}, "engine_args": {"dtype": "float16"}}
    )
    assert (completed["init_args"]["dtype"], completed["engine_args"]["dtype"]) == ("bfloat16", "float16")


def test_unknown_key_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="did you mean 'engine_args'"):
        get_model_config("b", str(tmp_path), {"engine_arg": {}})


def test_cpu_gets_what_works_there_and_one_line_says_so(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        completed = get_model_config("b", str(tmp_path), {"init_args": {"load_in_4bit": True}}, has_cuda=False)
    assert completed["init_args"]["load_in_4bit"] is False
    assert completed["init_args"]["dtype"] == "float32"
    assert completed["trainer_args"]["optim"] == "adamw_torch"
    engine = completed["engine_args"]
    assert engine["enable_sleep_mode"] is False
    assert engine["dtype"] == "float32"
    assert engine["enforce_eager"] is True
    assert engine["distributed_executor_backend"] == UNIPROC
    assert engine["kv_cache_memory_bytes"] == 1073741824
    lines = [record.message for record in caplog.records if record.levelno == logging.INFO]
    assert len(lines) == 1
    for words in ("init_args.load_in_4bit=False", "init_args.dtype=float32", "trainer_args.optim=adamw_torch"):
        assert words in lines[0]


def test_callers_values_win_on_a_cpu_where_they_can_work(tmp_path):
    completed = get_model_config(
        "b",
        str(tmp_path),
        {
            "init_args": {"dtype": "bfloat16"},
            "engine_args": {"enforce_eager": False, "kv_cache_memory_bytes": 1024},
            "trainer_args": {"optim": "sgd"},
        },
        has_cuda=False,
    )
    assert completed["init_args"]["dtype"] == "bfloat16"
    assert completed["engine_args"]["dtype"] == "bfloat16"
    assert completed["engine_args"]["enforce_eager"] is False
    assert completed["engine_args"]["kv_cache_memory_bytes"] == 1024
    assert completed["trainer_args"]["optim"] == "sgd"


@pytest.mark.parametrize(
    "optim", ["adamw_8bit", "lion_32bit", "ademamix", OptimizerNames.PAGED_ADAMW, "adamw_bnb_8bit"]
)
def test_optimizer_that_needs_cuda_is_replaced_on_a_cpu(tmp_path, optim):
    completed = get_model_config("b", str(tmp_path), {"trainer_args": {"optim": optim}}, has_cuda=False)
    assert completed["trainer_args"]["optim"] == "adamw_torch"


@pytest.mark.parametrize("has_cuda", [None, True])
def test_nothing_is_fitted_unless_the_machine_is_known_to_lack_cuda(tmp_path, has_cuda, caplog):
    with caplog.at_level(logging.INFO):
        completed = get_model_config("b", str(tmp_path), None, has_cuda=has_cuda)
    assert completed == get_model_config("b", str(tmp_path), None)
    assert completed["init_args"]["load_in_4bit"] is True
    assert not caplog.records
