"""A packed row is nothing but a cheaper way to compute the same: logprobs, gradients and losses of its completions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from art.dev.settings import TrainSettings
from art.loss import loss_fn
from art.preprocessing.inputs import trim_padding
from art.unsloth.language_model import LanguageModel
from tests.support.lora_models import load_model
from tests.support.packed_rows import Completion, Group, make_batch, pack_row, unpack_rows

TOLERANCE = 1e-5
GROUPS = [
    Group(
        [5, 17, 200, 31, 8, 90, 44],
        [Completion([60, 61, 7], 1.0), Completion([60, 99, 12, 13, 2], -0.7), Completion([2], 0.4)],
    ),
    Group([9, 9, 300, 41], [Completion([3, 250, 7, 7], -1.2), Completion([251, 4], 0.9)]),
]


@pytest.fixture(params=["tiny_qwen3", "tiny_llama"])
def model(request: pytest.FixtureRequest) -> Any:
    return load_model(request.getfixturevalue(request.param))


def scores(model: LanguageModel, batch: Any) -> torch.Tensor:
    """Return the logprobs of all trained tokens, row by row in their order."""
    logprobs, _ = model.score_row(batch, chunk_tokens=4)
    return logprobs[batch["assistant_mask"].roll(-1, dims=1)]


def gradients(model: LanguageModel, rows: list[Any]) -> dict[str, torch.Tensor]:
    """Return the gradient of the summed loss over rows."""
    model.peft_model.zero_grad(set_to_none=True)
    for row in rows:
        batch = make_batch([row])
        logprobs, entropies = model.score_row(batch, chunk_tokens=4)
        loss_fn(batch, logprobs, None, entropies, TrainSettings(), "sum").policy_loss.backward()  # type: ignore[arg-type]
    return {name: value.grad.clone() for name, value in model.adapter_parameters().items() if value.grad is not None}


def test_logprobs_of_a_packed_row_are_those_of_its_completions_alone(model: LanguageModel) -> None:
    packed = scores(model, make_batch([pack_row(GROUPS)]))
    alone = torch.cat([scores(model, make_batch([row])) for row in unpack_rows(GROUPS)])
    assert packed.shape == (15,)
    torch.testing.assert_close(packed, alone, atol=TOLERANCE, rtol=0)


def test_logprobs_are_those_of_the_library_without_any_mask(model: LanguageModel) -> None:
    expected = []
    with torch.no_grad():
        for group in GROUPS:
            for completion in group.completions:
                ids = torch.tensor([group.prompt + completion.tokens])
                logprobs = model.peft_model(input_ids=ids).logits[0, :-1].log_softmax(-1)
                expected.append(logprobs.gather(-1, ids[0, 1:, None])[len(group.prompt) - 1 :, 0])
        packed = scores(model, make_batch([pack_row(GROUPS)]))
    torch.testing.assert_close(packed, torch.cat(expected), atol=TOLERANCE, rtol=0)


def test_gradients_of_a_packed_row_are_the_sum_of_those_alone(model: LanguageModel) -> None:
    packed = gradients(model, [pack_row(GROUPS)])
    alone = gradients(model, unpack_rows(GROUPS))
    assert packed.keys() == alone.keys() == model.adapter_parameters().keys()
    assert max(value.abs().max() for value in packed.values()) > 0.01
    for name, value in packed.items():
        torch.testing.assert_close(value, alone[name], atol=TOLERANCE, rtol=0, msg=name)


def test_siblings_do_not_see_each_other(model: LanguageModel) -> None:
    prompt, first, second = GROUPS[0].prompt, GROUPS[0].completions[0], GROUPS[0].completions[1]
    other_first = Completion([111, 112, 113], first.advantage)
    with torch.no_grad():
        before = scores(model, make_batch([pack_row([Group(prompt, [first, second])])]))
        after = scores(model, make_batch([pack_row([Group(prompt, [other_first, second])])]))
    assert not torch.equal(before[:3], after[:3])
    assert torch.equal(before[3:], after[3:])


def test_positions_are_those_of_the_conversation(model: LanguageModel) -> None:
    batch = make_batch([pack_row(GROUPS)])
    with torch.no_grad():
        right = scores(model, batch)
        batch["input_pos"] = torch.arange(batch["tokens"].shape[1]).unsqueeze(0)
        wrong = scores(model, batch)
    assert (right - wrong).abs().max() > 100 * TOLERANCE


def test_padding_changes_nothing(model: LanguageModel) -> None:
    row = pack_row(GROUPS)
    short, long = make_batch([row], padding=0), make_batch([row], padding=40)
    with torch.no_grad():
        torch.testing.assert_close(scores(model, long), scores(model, short), atol=TOLERANCE, rtol=0)
    assert trim_padding(long)["tokens"].shape == short["tokens"].shape
    assert trim_padding(long, 32)["tokens"].shape[1] == 32
    assert trim_padding(short, 32)["tokens"].shape == short["tokens"].shape


def test_recomputed_activations_give_the_same_gradients(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [pack_row(GROUPS)]
    kept = gradients(model, rows)
    assert not model.causal_lm.is_gradient_checkpointing
    monkeypatch.setattr(LanguageModel, "_is_too_long_for_memory", lambda self, num_tokens: True)
    recomputed = gradients(model, rows)
    assert model.causal_lm.is_gradient_checkpointing
    for name, value in kept.items():
        assert torch.equal(value, recomputed[name]), name


def test_sliding_windows_are_kept_when_packed(tmp_path: Path) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(2)
    config = Qwen3Config(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        use_sliding_window=True,
        sliding_window=4,
        layer_types=["full_attention", "sliding_attention"],
        initializer_range=0.08,
    )
    Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    with torch.no_grad():
        packed = scores(model, make_batch([pack_row(GROUPS)]))
        by_library = []
        for group in GROUPS:
            for completion in group.completions:
                ids = torch.tensor([group.prompt + completion.tokens])
                logprobs = model.peft_model(input_ids=ids).logits[0, :-1].log_softmax(-1)
                by_library.append(logprobs.gather(-1, ids[0, 1:, None])[len(group.prompt) - 1 :, 0])
    torch.testing.assert_close(packed, torch.cat(by_library), atol=TOLERANCE, rtol=0)
