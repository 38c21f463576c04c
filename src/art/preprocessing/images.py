"""Images of a conversation: opened, processed, and matched with the places that the chat template left for them."""

from __future__ import annotations

import base64
import binascii
import io
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from art.errors import TokenizationError
from art.preprocessing.tokenizer_protocol import Tokenizer

if TYPE_CHECKING:
    from PIL.Image import Image

logger = logging.getLogger(__name__)

DEFAULT_PLACEHOLDER = "<|image_pad|>"


@dataclass(frozen=True)
class ConversationImages:
    """The images of a conversation, in order.

    Attributes:
        sources: Where each came from; equal sources count as equal images.
        pixel_values: Patches of all images, one after the other, (sum of patches, patch size).
        image_grid_thw: Patches of each image in time, height and width, (images, 3).
        tokens_per_image: How many tokens stand for each image in the model's input.
        placeholder_id: The token that stands for a part of an image.
    """

    sources: list[str]
    pixel_values: torch.Tensor
    image_grid_thw: torch.Tensor
    tokens_per_image: list[int]
    placeholder_id: int

    def first(self, count: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Give the patches and grids of the first `count` images; None for none."""
        if count == 0:
            return None, None
        grids = self.image_grid_thw[:count]
        return self.pixel_values[: num_patches(grids)], grids


def num_patches(image_grid_thw: torch.Tensor) -> int:
    """Count the patches (rows of `pixel_values`) of images with these grids."""
    return int(image_grid_thw.prod(dim=-1).sum())


def load_images(
    messages: Iterable[Mapping[str, Any]], image_processor: Any, tokenizer: Tokenizer
) -> ConversationImages | None:
    """Open and process the images of user messages; None if there are none.

    Args:
        messages: OpenAI messages; an image is a part `{"type": "image_url", "image_url": {"url": …}}` whose URL is a
            local path, a `file://` or a `data:` URL.
        image_processor: The base model's, or None for a model without images.
        tokenizer: Knows the placeholder.

    Raises:
        TokenizationError: An image cannot be opened.
    """
    sources = list(_image_sources(messages))
    if not sources:
        return None
    if image_processor is None:
        logger.warning("%d images in a conversation, but the model has no image processor: not used", len(sources))
        return None
    processed = image_processor(images=[_open_image(source) for source in sources], return_tensors="pt")
    grids = torch.as_tensor(processed["image_grid_thw"])
    merged_patches = int(image_processor.merge_size) ** 2
    return ConversationImages(
        sources=sources,
        pixel_values=torch.as_tensor(processed["pixel_values"]),
        image_grid_thw=grids,
        tokens_per_image=[int(count) // merged_patches for count in grids.prod(dim=-1)],
        placeholder_id=_placeholder_id(image_processor, tokenizer),
    )


def expand_placeholders(
    token_ids: Sequence[int], images: ConversationImages, first_image: int
) -> tuple[list[int], list[int]]:
    """Repeat each placeholder as often as its image has tokens.

    Args:
        token_ids: Rendered context, with one placeholder for each image.
        images: The images of the conversation.
        first_image: Which of them the first placeholder stands for.

    Returns:
        The longer ids, and where in them each image begins.

    Raises:
        TokenizationError: There are more placeholders than images.
    """
    expanded: list[int] = []
    starts: list[int] = []
    for token_id in token_ids:
        if token_id != images.placeholder_id:
            expanded.append(token_id)
            continue
        number = first_image + len(starts)
        if number >= len(images.sources):
            raise TokenizationError(f"the rendered conversation has places for more than its {number} images")
        starts.append(len(expanded))
        expanded.extend([token_id] * images.tokens_per_image[number])
    return expanded, starts


def _image_sources(messages: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for message in messages:
        content = message.get("content")
        if message.get("role") != "user" or isinstance(content, str) or not content:
            continue
        for part in content:
            if isinstance(part, Mapping) and part.get("type") == "image_url":
                image_url = part["image_url"]
                yield image_url["url"] if isinstance(image_url, Mapping) else image_url


def _open_image(source: str) -> Image:
    from PIL import Image

    try:
        if source.startswith("data:"):
            content: Any = io.BytesIO(base64.b64decode(source.partition(",")[2], validate=True))
        else:
            content = source.removeprefix("file://")
        with Image.open(content) as image:
            return image.convert("RGB")
    except (OSError, ValueError, binascii.Error) as err:
        raise TokenizationError(
            f"cannot open the image {source[:200]!r}: {err}. Training needs a local path, a file:// or a data: URL."
        ) from err


def _placeholder_id(image_processor: Any, tokenizer: Tokenizer) -> int:
    token_id = getattr(image_processor, "image_token_id", None)
    if token_id is None:
        placeholder = getattr(image_processor, "image_token", None) or DEFAULT_PLACEHOLDER
        token_id = tokenizer.convert_tokens_to_ids(placeholder)
    return int(token_id)
