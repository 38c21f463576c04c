"""Packing: nothing is lost, siblings do not see each other, rows are filled."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from art.preprocessing.pack import PackedTensors, packed_tensors_from_tokenized_results
from art.preprocessing.tokenize import TokenizedResult
from art.trajectories import Trajectory
from tests.support.tokenizers import load_golden

GOLDEN = load_golden("packing.json")
NAN = float("nan")


def make_result(
    prompt: list[int], completion: list[int], *, shared: int = 0, prompt_id: int = 7, **fields: Any
) -> TokenizedResult:
    tokens = [*prompt, *completion]
    return TokenizedResult(
        advantage=fields.pop("advantage", 1.0),
        chat="",
        token_ids=tokens,
        input_pos=list(range(len(tokens))),
        assistant_mask=[0] * len(prompt) + [1] * len(completion),
        logprobs=[NAN] * len(prompt) + [-float(token) for token in completion],
        pixel_values=fields.pop("pixel_values", None),
        image_grid_thw=fields.pop("image_grid_thw", None),
        trajectory=Trajectory(),
        _tokenizer=None,
        weight=fields.pop("weight", 1.0),
        prompt_id=prompt_id,
        prompt_length=shared,
        **fields,
    )


def pack(results: list[TokenizedResult], seq_len: int, **kwargs: Any) -> PackedTensors:
    kwargs.setdefault("rng", random.Random(0))
    return packed_tensors_from_tokenized_results(results, seq_len, **{"pad_token_id": 0, **kwargs})


# Recorded numbers --------------------------------------------------------------------------------------------


def _golden_inputs() -> list[TokenizedResult]:
    return [
        TokenizedResult(
            chat="",
            input_pos=list(range(len(given["token_ids"]))),
            pixel_values=None,
            image_grid_thw=None,
            trajectory=Trajectory(),
            _tokenizer=None,
            **{**given, "logprobs": [NAN if value is None else value for value in given["logprobs"]]},
        )
        for given in GOLDEN["inputs"]
    ]


def _as_golden_rows(tensors: PackedTensors) -> list[dict[str, list[Any]]]:
    """Rows sorted by tokens, completion ids numbered in order of appearance, NaN as None."""
    keys = list(GOLDEN["cases"][0]["dtypes"])
    rows = [{key: tensors[key][index].tolist() for key in keys} for index in range(len(tensors["tokens"]))]
    rows.sort(key=lambda row: row["tokens"])
    numbers = {identifier: identifier for identifier in (-1, 1000, 2000)}
    for row in rows:
        for identifier in row["group_ids"]:
            numbers.setdefault(identifier, len(numbers) - 2)
        row["group_ids"] = [numbers[identifier] for identifier in row["group_ids"]]
        row["logprobs"] = [None if math.isnan(value) else round(value, 6) for value in row["logprobs"]]
    return rows


@pytest.mark.parametrize("fit", ["first", "next"])
@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: f"{case['seq_len']}_{case['advantage_balance']}")
def test_packing_gives_the_recorded_rows(case: dict[str, Any], fit: str) -> None:
    options = {key: case[key] for key in ("advantage_balance", "truncate_long_results")}
    tensors = pack(_golden_inputs(), case["seq_len"], fit=fit, pad_token_id=GOLDEN["pad_token_id"], **options)
    assert {key: str(tensors[key].dtype) for key in case["dtypes"]} == case["dtypes"]
    # The recorded weights of the inputs are rounded to six decimals.
    expected = [
        {**row, **{key: pytest.approx(row[key], abs=2e-6) for key in ("advantages", "weights")}} for row in case["rows"]
    ]
    assert _as_golden_rows(tensors) == expected
    assert tensors["pixel_values"] == case["pixel_values"]


# Properties --------------------------------------------------------------------------------------------------


@st.composite
def tokenized_groups(draw: st.DrawFn) -> list[TokenizedResult]:
    """Groups as the tokenizer gives them: a common prompt, of which the last token is not in the shared part."""
    results = []
    for prompt_id in range(100, 100 + draw(st.integers(1, 4))):
        prompt = draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))
        for _ in range(draw(st.integers(1, 5))):
            completion = draw(st.lists(st.integers(10, 19), min_size=1, max_size=8))
            results.append(make_result(prompt, completion, shared=len(prompt) - 1, prompt_id=prompt_id))
    return draw(st.permutations(results))


def visible(tensors: PackedTensors, row: int, index: int) -> list[int]:
    """Give the places that a token may attend to."""
    groups, parents = tensors["group_ids"][row], tensors["parent_ids"][row]
    allowed = (groups[: index + 1] == groups[index]) | (groups[: index + 1] == parents[index])
    return allowed.nonzero().flatten().tolist()


def unpack(tensors: PackedTensors) -> Counter[tuple[Any, ...]]:
    """Give each completion with its prompt, as tokens, mask and logprobs by position."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in range(len(tensors["tokens"])):
        groups, parents = tensors["group_ids"][row], tensors["parent_ids"][row]
        for group in set(groups[groups != parents].tolist()):
            last = int((groups == group).nonzero().flatten()[-1])
            places = visible(tensors, row, last)
            assert tensors["input_pos"][row, places].tolist() == list(range(len(places)))
            found[
                tuple(tensors["tokens"][row, places].tolist()),
                tuple(tensors["assistant_mask"][row, places].tolist()),
                tuple(tensors["logprobs"][row, places].nan_to_num(nan=1.0).tolist()),
            ] += 1
    return found


@settings(max_examples=150, deadline=None)
@given(results=tokenized_groups(), seq_len=st.integers(16, 40), fit=st.sampled_from(["first", "next"]))
def test_unpacking_gives_back_every_sequence(results: list[TokenizedResult], seq_len: int, fit: str) -> None:
    tensors = pack(results, seq_len, fit=fit)
    expected = Counter(
        (
            tuple(result.token_ids),
            tuple(bool(mask) for mask in result.assistant_mask),
            tuple(1.0 if math.isnan(value) else value for value in result.logprobs),
        )
        for result in results
    )
    assert unpack(tensors) == expected
    assert int(tensors["assistant_mask"].sum()) == sum(sum(result.assistant_mask) for result in results)


@settings(max_examples=100, deadline=None)
@given(results=tokenized_groups(), seq_len=st.integers(16, 40))
def test_each_token_sees_exactly_its_own_past(results: list[TokenizedResult], seq_len: int) -> None:
    tensors = pack(results, seq_len)
    beginnings = {tuple(result.token_ids[:end]) for result in results for end in range(1, len(result.token_ids) + 1)}
    for row in range(len(tensors["tokens"])):
        for index in (tensors["group_ids"][row] != -1).nonzero().flatten().tolist():
            places = visible(tensors, row, index)
            assert tensors["input_pos"][row, places].tolist() == list(range(int(tensors["input_pos"][row, index]) + 1))
            assert tuple(tensors["tokens"][row, places].tolist()) in beginnings
            if tensors["group_ids"][row, index] == tensors["parent_ids"][row, index]:
                assert not tensors["assistant_mask"][row, index]


@settings(max_examples=100, deadline=None)
@given(results=tokenized_groups(), seed=st.integers(0, 9))
def test_scale_of_rewards_cancels(results: list[TokenizedResult], seed: int) -> None:
    rng = random.Random(seed)
    for result in results:
        result.advantage, result.weight = rng.uniform(-9, 9), rng.uniform(0.1, 5)
    tensors = pack(results, 32)
    mask = tensors["assistant_mask"]
    weights, advantages = tensors["weights"][mask], tensors["advantages"][mask]
    assert weights.mean().item() == pytest.approx(1, rel=1e-5)
    assert (weights * advantages.abs()).mean().item() == pytest.approx(1, rel=1e-5)
    assert not tensors["weights"][~mask].any()
    assert not tensors["advantages"][~mask].any()


# Rows --------------------------------------------------------------------------------------------------------


def test_short_sequences_share_few_rows() -> None:
    results = [make_result([1, 2], [3] * (20 + index % 40), prompt_id=index + 1) for index in range(118)]
    total = sum(len(result.token_ids) for result in results)
    tensors = pack(results, 1024)
    assert len(tensors["tokens"]) == math.ceil(total / 1024) == 5


def test_gaps_in_earlier_rows_are_filled() -> None:
    results = [make_result([1], [2] * (length - 1), prompt_id=length) for length in (6, 7, 4, 3)]
    assert len(pack(results, 10, fit="next")["tokens"]) == 3
    assert len(pack(results, 10, fit="first")["tokens"]) == 2


def test_a_row_that_holds_the_prompt_is_preferred() -> None:
    other = make_result([9], [2] * 3, prompt_id=1)
    tall = make_result([1] * 5, [2] * 3, shared=4, prompt_id=2)
    tensors = pack([other, tall, make_result([1] * 5, [3, 4], shared=4, prompt_id=2)], 11)
    # other and tall do not fit into one row; the second completion needs 7 tokens in the first row, 3 in the second
    rows = sorted(row[row > 0].tolist() for row in tensors["tokens"])
    assert rows == [[1, 1, 1, 1, 1, 2, 2, 2, 1, 3, 4], [9, 2, 2, 2]]


def test_every_row_of_a_group_holds_its_prompt() -> None:
    results = [make_result([1, 2, 3], [10, 11, 12], shared=2) for _ in range(7)]
    tensors = pack(results, 10)  # 6 tokens, then 4 for each more: two to a row
    assert len(tensors["tokens"]) == 4
    assert all(row[:3].tolist() == [1, 2, 3] for row in tensors["tokens"])


def test_results_without_trained_tokens_after_their_prompt_are_left_out() -> None:
    nothing = make_result([1, 2, 3], [])
    cut_off = make_result([1] * 20, [5])
    tensors = pack([nothing, make_result([1], [2]), cut_off], 8)
    assert tensors["tokens"].tolist() == [[1, 2, 0, 0, 0, 0, 0, 0]]
    empty = pack([nothing], 8)
    assert {tuple(empty[key].shape) for key in ("tokens", "weights")} == {(0, 8)}
    assert empty["pixel_values"] == []


def test_padding() -> None:
    tensors = pack([make_result([1], [2])], 4, pad_token_id=99)
    assert tensors["tokens"].tolist() == [[1, 2, 99, 99]]
    assert tensors["group_ids"][0, 2:].tolist() == tensors["parent_ids"][0, 2:].tolist() == [-1, -1]
    assert tensors["input_pos"][0, 2:].tolist() == [0, 0]
    assert tensors["logprobs"][0, 2:].isnan().all()


def test_full_balance_with_advantages_of_one_sign_gives_nan() -> None:
    tensors = pack([make_result([1], [2, 3], advantage=-1.0)], 4, advantage_balance=1.0)
    assert tensors["advantages"][0, 1:3].isnan().all()


def test_each_result_gets_its_own_row_if_packing_is_off() -> None:
    results = [make_result([1, 2], [index], shared=1) for index in (10, 11, 12)]
    tensors = pack(results, 8, pack_results=False)
    assert sorted(row[:4].tolist() for row in tensors["tokens"]) == [[1, 2, index, 0] for index in (10, 11, 12)]


def test_order_of_rows_comes_from_the_generator() -> None:
    results = [make_result([1], [index] * 5, prompt_id=index) for index in range(2, 12)]
    orders = [tuple(pack(results, 6, rng=random.Random(seed))["tokens"][:, 1].tolist()) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    state, numpy_state = random.getstate(), np.random.get_state()[1].tolist()
    pack(results, 6, rng=None)
    assert random.getstate() == state
    assert np.random.get_state()[1].tolist() == numpy_state


def test_results_with_different_prompts_under_one_id_do_not_share() -> None:
    results = [make_result([1, 2, 3], [10], shared=2), make_result([1, 2, 3], [11], shared=1)]
    tensors = pack(results, 8)
    assert tensors["tokens"].tolist() == [[1, 2, 3, 10, 1, 2, 3, 11]]
    assert {key[0] for key in unpack(tensors)} == {(1, 2, 3, 10), (1, 2, 3, 11)}


# Images ------------------------------------------------------------------------------------------------------


def _image(value: float, patches: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((patches, 3), value), torch.tensor([[1, 2, patches // 2]])


def _images(*values: float) -> dict[str, torch.Tensor]:
    pixels, grids = zip(*(_image(value) for value in values), strict=True)
    return {"pixel_values": torch.cat(pixels), "image_grid_thw": torch.cat(grids)}


def test_images_of_a_shared_prompt_travel_once() -> None:
    results = [
        make_result([1, 9, 2], [completion], shared=2, image_starts=starts, **_images(0.5))
        for completion, starts in ((10, [1]), (11, [1]), (12, []))
    ]
    tensors = pack(results, 16)
    assert tensors["tokens"][0, :8].tolist() == [1, 9, 2, 10, 2, 11, 2, 12]
    [pixels], [grids] = tensors["pixel_values"], tensors["image_grid_thw"]
    assert pixels is not None
    assert grids is not None
    assert pixels.shape == (4, 3)
    assert grids.tolist() == [[1, 2, 2]]


def test_images_after_a_shared_prompt_are_carried_along() -> None:
    results = [
        make_result([1, 9, 2, 9, 3], [10], shared=2, image_starts=[1, 3], **_images(0.0, first)) for first in (1.0, 2.0)
    ]
    tensors = pack(results, 16)
    assert tensors["tokens"][0, :10].tolist() == [1, 9, 2, 9, 3, 10, 2, 9, 3, 10]
    [pixels], [grids] = tensors["pixel_values"], tensors["image_grid_thw"]
    assert pixels is not None
    assert grids is not None
    assert pixels[::4, 0].tolist() == [0.0, 1.0, 2.0]
    assert len(grids) == 3


def test_images_at_unknown_places_are_not_lost() -> None:
    results = [
        make_result([1, 2, 3], [10], shared=2),
        make_result([1, 2, 9, 3], [11], shared=2, **_images(1.0)),
    ]
    tensors = pack(results, 16)
    assert {key[0] for key in unpack(tensors)} == {(1, 2, 3, 10), (1, 2, 9, 3, 11)}
    [pixels] = tensors["pixel_values"]
    assert pixels is not None
    assert pixels.shape == (4, 3)


def test_rows_without_images_hold_none() -> None:
    results = [make_result([1] * 5, [2], prompt_id=1), make_result([9] * 5, [3], prompt_id=2, **_images(1.0))]
    tensors = pack(results, 6)
    has_images = [row[0].item() == 9 for row in tensors["tokens"]]
    assert [pixels is not None for pixels in tensors["pixel_values"]] == has_images
    assert [grids is not None for grids in tensors["image_grid_thw"]] == has_images
