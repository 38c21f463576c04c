"""Images of conversations: each fills the place that the template left for it, in every sequence that shows it."""

from __future__ import annotations

import base64
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from art.errors import TokenizationError
from art.preprocessing.tokenize import TokenizedResult, tokenize_trajectory, tokenize_trajectory_groups
from art.trajectories import History, Trajectory, TrajectoryGroup
from tests.support.tokenizers import answer, toy_tokenizer

TOY = toy_tokenizer()
PAD = TOY.special["<|image_pad|>"]


class FakeImageProcessor:
    """Gives a patch for each pixel, with the pixel's red value; merges two by two."""

    merge_size = 2

    def __call__(self, images: list[Image.Image], return_tensors: str) -> dict[str, torch.Tensor]:
        assert return_tensors == "pt"
        patches = [torch.full((image.width * image.height, 3), float(image.getpixel((0, 0))[0])) for image in images]
        grids = [[1, image.height, image.width] for image in images]
        return {"pixel_values": torch.cat(patches), "image_grid_thw": torch.tensor(grids)}


def _image_file(folder: Path, red: int, width: int, height: int) -> str:
    path = folder / f"{red}.png"
    Image.new("RGB", (width, height), (red, 0, 0)).save(path)
    return str(path)


def _question(text: str, *urls: str) -> dict[str, Any]:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"role": "user", "content": [*images, {"type": "text", "text": text}]}


def _tokenize(entries: list[Any], processor: Any) -> TokenizedResult:
    result = tokenize_trajectory(TOY, processor, History(messages_and_choices=entries), 1.0, False, Trajectory())
    assert result is not None
    return result


def test_placeholder_is_repeated_for_each_merged_patch(tmp_path: Path) -> None:
    small, large = _image_file(tmp_path, 10, 4, 2), _image_file(tmp_path, 20, 4, 6)
    entries = [_question("U", f"file://{small}", large), answer(TOY, "A")]
    result = _tokenize(entries, FakeImageProcessor())
    prompt = "<|im_start|>user\n" + "<|image_pad|>" * (2 + 6) + "U<|im_end|>\n<|im_start|>assistant\n"
    assert "".join(result.tokens) == f"{prompt}A<|im_end|>"
    assert result.image_starts == [6, 8]
    assert len(result.assistant_mask) == len(result.logprobs) == len(result.token_ids)
    assert result.assistant_mask[-3:] == [0, 1, 1]
    assert result.pixel_values is not None
    assert result.image_grid_thw is not None
    assert result.pixel_values[:, 0].tolist() == [10.0] * 8 + [20.0] * 24
    assert result.image_grid_thw.tolist() == [[1, 2, 4], [1, 6, 4]]


def test_images_of_later_turns_follow_the_earlier_ones(tmp_path: Path) -> None:
    first, second, unseen = (_image_file(tmp_path, red, 2, 2 * red) for red in (1, 2, 3))
    entries = [
        _question("U", first),
        answer(TOY, "A"),
        _question("V", second),
        answer(TOY, "B"),
        _question("W", unseen),
    ]
    result = _tokenize(entries, FakeImageProcessor())
    first_start, second_start = result.image_starts
    assert result.token_ids[first_start : first_start + 2] == [PAD, ord("U")]
    assert result.token_ids[second_start : second_start + 3] == [PAD, PAD, ord("V")]
    assert result.pixel_values is not None
    assert result.pixel_values[::4, 0].tolist() == [1.0, 2.0, 2.0]


def test_sequence_holds_only_the_images_that_it_shows(tmp_path: Path) -> None:
    one, two = (_image_file(tmp_path, red, 2, 2 * red) for red in (1, 2))
    thought = answer(TOY, "because</think>A", content="A")
    entries = [_question("U", one), thought, _question("V", two), answer(TOY, "B")]
    first, second = _results(entries, [_question("U", one)])
    assert first.pixel_values is not None
    assert first.image_grid_thw is not None
    assert (first.pixel_values[:, 0].tolist(), first.image_grid_thw.tolist()) == ([1.0] * 4, [[1, 2, 2]])
    assert second.pixel_values is not None
    assert second.pixel_values[:, 0].tolist() == [1.0] * 4 + [2.0] * 8
    assert len(second.image_starts) == 2


def test_a_real_image_processor_fits(tmp_path: Path) -> None:
    from transformers import Qwen2VLImageProcessor

    path = _image_file(tmp_path, 10, 112, 56)  # 4 by 8 patches of 14 pixels, merged two by two
    result = _tokenize([_question("U", path), answer(TOY, "A")], Qwen2VLImageProcessor())
    assert result.token_ids.count(PAD) == 2 * 4
    assert result.pixel_values is not None
    assert len(result.pixel_values) == 32


def test_data_url_is_opened(tmp_path: Path) -> None:
    content = base64.b64encode(Path(_image_file(tmp_path, 9, 2, 2)).read_bytes()).decode()
    result = _tokenize([_question("U", f"data:image/png;base64,{content}"), answer(TOY, "A")], FakeImageProcessor())
    assert result.pixel_values is not None
    assert result.pixel_values[0, 0] == 9


@pytest.mark.parametrize("url", ["https://example.com/a.png", "/no/such/file.png", "data:image/png;base64,xx!"])
def test_image_that_cannot_be_opened_is_named(url: str) -> None:
    with pytest.raises(TokenizationError, match="cannot open the image"):
        _tokenize([_question("U", url), answer(TOY, "A")], FakeImageProcessor())


def test_text_that_looks_like_an_image_is_refused(tmp_path: Path) -> None:
    path = _image_file(tmp_path, 1, 2, 2)
    with pytest.raises(TokenizationError, match="places for more than its 1 images"):
        _tokenize([_question("<|image_pad|>", path), answer(TOY, "A")], FakeImageProcessor())


def test_without_a_processor_images_stay_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = _image_file(tmp_path, 1, 2, 2)
    result = _tokenize([_question("U", path), answer(TOY, "A")], None)
    assert (result.pixel_values, result.token_ids.count(PAD)) == (None, 1)
    assert "1 images in a conversation" in caplog.text


def _results(*conversations: list[Any]) -> list[TokenizedResult]:
    group = TrajectoryGroup(
        [Trajectory(messages_and_choices=entries, reward=reward) for reward, entries in enumerate(conversations)]
    )
    return list(
        tokenize_trajectory_groups(
            TOY, [group], False, True, False, image_processor=FakeImageProcessor(), rng=random.Random(0)
        )
    )


def test_group_shares_equal_images_and_stops_before_different_ones(tmp_path: Path) -> None:
    same, one, other = (_image_file(tmp_path, red, 4, 4) for red in (1, 2, 3))
    shared = _results([_question("U", same, one), answer(TOY, "A")], [_question("U", same, other), answer(TOY, "B")])
    header = len("user\n") + 1
    # Of the four tokens of the shared image the last would be repeated: images are shared whole or not at all.
    assert [result.prompt_length for result in shared] == [header] * 2
    with_text = _results(
        [_question("U", same), answer(TOY, "x"), _question("V", one), answer(TOY, "A")],
        [_question("U", same), answer(TOY, "y"), _question("V", other), answer(TOY, "B")],
    )
    prompt = header + 4 + len("U") + 2 + 1 + len("assistant\n")
    assert [result.prompt_length for result in with_text] == [prompt - 1] * 2
