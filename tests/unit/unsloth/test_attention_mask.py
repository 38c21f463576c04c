from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from art.errors import ConfigurationError
from art.unsloth.attention_mask import attention_bias, build_attention, visible_tokens

# A prompt of two tokens (id 1), two completions of it (ids 2 and 3), and padding.
GROUP_IDS = torch.tensor([[1, 1, 2, 2, 3, 3, -1]])
PARENT_IDS = torch.tensor([[1, 1, 1, 1, 1, 1, -1]])
INPUT_POS = torch.tensor([[0, 1, 2, 3, 2, 3, 0]])
FULL = SimpleNamespace(layer_types=["full_attention"])


def sees(mask: torch.Tensor) -> list[str]:
    return ["".join(".x"[bool(visible)] for visible in row) for row in mask]


def test_completions_see_their_prompt_and_themselves() -> None:
    assert sees(visible_tokens(GROUP_IDS, PARENT_IDS)[0]) == [
        "x......",
        "xx.....",
        "xxx....",
        "xxxx...",
        "xx..x..",
        "xx..xx.",
        "......x",
    ]


def test_prompts_of_one_row_are_strangers() -> None:
    group_ids = torch.tensor([[1, 2, 5, 6]])
    parent_ids = torch.tensor([[1, 1, 5, 5]])
    assert sees(visible_tokens(group_ids, parent_ids)[0]) == ["x...", "xx..", "..x.", "..xx"]


def test_bias_adds_nothing_or_minus_infinity() -> None:
    bias = attention_bias(torch.tensor([[[True, False], [True, True]]]), torch.float32)
    assert bias.tolist() == [[[[0.0, -torch.inf], [0.0, 0.0]]]]


def test_sliding_window_counts_positions_in_the_conversation() -> None:
    config = SimpleNamespace(layer_types=["full_attention", "sliding_attention"], sliding_window=2)
    masks = build_attention(config, GROUP_IDS, PARENT_IDS, INPUT_POS, torch.float32)
    assert isinstance(masks, dict)
    assert set(masks) == {"full_attention", "sliding_attention"}
    # Token 4 is the first of the second completion: its neighbour is the prompt's last token, at place 1 of the row.
    assert sees(masks["sliding_attention"][0, 0] == 0)[2:6] == [".xx....", "..xx...", ".x..x..", "....xx."]
    assert sees(masks["full_attention"][0, 0] == 0)[4] == "xx..x.."


def test_one_kind_of_layer_needs_one_mask() -> None:
    mask = build_attention(FULL, GROUP_IDS, PARENT_IDS, INPUT_POS, torch.bfloat16)
    assert isinstance(mask, torch.Tensor)
    assert mask.shape == (1, 1, 7, 7)
    assert mask.dtype == torch.bfloat16
    only_sliding = SimpleNamespace(layer_types=None, sliding_window=1)
    assert (
        sees(build_attention(only_sliding, GROUP_IDS, PARENT_IDS, INPUT_POS, torch.float32)[0, 0] == 0)[3] == "...x..."
    )


def test_chunks_are_chunks_of_the_conversation() -> None:
    config = SimpleNamespace(layer_types=["chunked_attention"], attention_chunk_size=3)
    mask = build_attention(config, GROUP_IDS, PARENT_IDS, INPUT_POS, torch.float32)
    assert isinstance(mask, torch.Tensor)
    assert sees(mask[0, 0] == 0)[4:6] == ["xx..x..", ".....x."]


@pytest.mark.parametrize("form", ["dense", "blocks"])
def test_layers_that_no_mask_restricts_are_refused(form: Any) -> None:
    config = SimpleNamespace(layer_types=["full_attention", "linear_attention"], model_type="hybrid")
    with pytest.raises(ConfigurationError, match="linear_attention"):
        build_attention(config, GROUP_IDS, PARENT_IDS, INPUT_POS, torch.float32, form)
