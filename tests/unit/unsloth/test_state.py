from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from art.errors import ConfigurationError, IncompatibleDependencyError
from art.unsloth import state
from art.unsloth.optimizer import log_ignored_arguments, make_optimizer
from art.unsloth.patches import keep_attention_mask
from art.unsloth.state import _keep_positions, compute_dtype
from tests.support.lora_models import load_model

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, torch.float32),
        ("auto", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("torch.float16", torch.float16),
        (torch.bfloat16, torch.bfloat16),
    ],
)
def test_type_to_compute_in_on_a_cpu(wanted: object, expected: torch.dtype) -> None:
    assert compute_dtype(wanted, CPU) is expected


@pytest.mark.parametrize("wanted", ["int8", "nonsense", "nn"])
def test_other_types_are_refused(wanted: str) -> None:
    with pytest.raises(ConfigurationError, match=wanted):
        compute_dtype(wanted, CPU)


@pytest.mark.parametrize(
    ("environment", "gpu_has_bf16", "expected"),
    [
        ({}, True, torch.bfloat16),
        ({}, False, torch.float16),
        ({"ACCELERATE_MIXED_PRECISION": "fp16"}, True, torch.float16),
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, False, torch.bfloat16),
        ({"UNSLOTH_FORCE_FLOAT32": "1"}, True, torch.float32),
    ],
)
def test_type_to_compute_in_on_a_gpu(
    environment: dict[str, str], gpu_has_bf16: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ACCELERATE_MIXED_PRECISION", "UNSLOTH_FORCE_FLOAT32"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: gpu_has_bf16)
    assert compute_dtype(None, GPU) is expected


def test_unsloth_is_chosen_for_a_gpu_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(state.importlib.util, "find_spec", lambda name: object())
    assert (state._choose_loader(CPU), state._choose_loader(GPU)) == ("transformers", "unsloth")
    monkeypatch.setattr(state.importlib.util, "find_spec", lambda name: None)
    assert state._choose_loader(GPU) == "transformers"
    assert "unsloth is not installed" in caplog.text


def test_half_precision_models_have_float32_adapters(tiny_qwen3: Path) -> None:
    model = load_model(tiny_qwen3, init_args={"dtype": "bfloat16"})
    assert {value.dtype for value in model.adapter_parameters().values()} == {torch.float32}
    assert model.head.module.weight.dtype == torch.bfloat16


def test_arguments_without_effect_are_named(tiny_qwen3: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        load_model(tiny_qwen3, init_args={"fix_tokenizer": True})
        log_ignored_arguments({"warmup_steps": 3, "logging_steps": 1, "optim": "adamw"})
    assert "init_args without effect on the trainer (transformers): fix_tokenizer" in caplog.text
    assert "trainer_args without effect on this trainer: warmup_steps" in caplog.text


def test_optimizer_takes_its_arguments(caplog: pytest.LogCaptureFixture) -> None:
    weights = [torch.nn.Parameter(torch.ones(2))]
    given = {"optim": "adamw_torch", "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6, "weight_decay": 0.3}
    (group,) = make_optimizer(weights, given, CPU).param_groups
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.8, 0.95), 1e-6, 0.3)
    (default,) = make_optimizer(weights, {"optim": "adamw_torch"}, CPU).param_groups
    assert (default["betas"], default["eps"], default["weight_decay"]) == ((0.9, 0.99), 1e-8, 0.1)
    assert not caplog.records
    assert isinstance(make_optimizer(weights, {"optim": "paged_adamw_8bit"}, CPU), torch.optim.AdamW)
    assert "paged_adamw_8bit needs a GPU" in caplog.text


@pytest.mark.parametrize(("asked_for", "expected"), [(32768, 1024), (512, 512)])
def test_unsloth_is_asked_for_no_more_positions_than_the_model_has(
    tiny_qwen3: Path, asked_for: int, expected: int
) -> None:
    arguments = {"model_name": str(tiny_qwen3), "max_seq_length": asked_for}  # the model has 1,024
    _keep_positions(arguments, trust_remote_code=False)
    assert arguments["max_seq_length"] == expected


@pytest.mark.parametrize("flag", ["_unsloth_keep_padding_mask", "_unsloth_allow_packed_overlength"])
def test_patch_is_refused_where_a_flag_is_gone(monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    class Backbone:
        def forward(self) -> None: ...

    backbone = Backbone()
    keep_attention_mask(backbone)
    keep_attention_mask(backbone)
    assert getattr(backbone, flag) is True

    both = "_unsloth_keep_padding_mask _unsloth_allow_packed_overlength"
    module = SimpleNamespace(__name__="unsloth.models.llama")
    monkeypatch.setattr("art.unsloth.patches.inspect.getmodule", lambda function: module)
    monkeypatch.setattr("art.unsloth.patches.inspect.getsource", lambda found: both.replace(flag, ""))
    with pytest.raises(IncompatibleDependencyError, match=flag):
        keep_attention_mask(backbone)
