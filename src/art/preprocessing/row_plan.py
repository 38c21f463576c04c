"""Which token sequences go into which row of a packed batch."""

from __future__ import annotations

import random
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import torch

from art.preprocessing.images import num_patches

if TYPE_CHECKING:
    from art.preprocessing.tokenize import TokenizedResult

Fit = Literal["first", "next"]
MAX_RANDOM_ID = 2**63 - 1  # ids are int64; -1 marks padding
_NO_ROWS = b""


@dataclass(frozen=True)
class Segment:
    """The part of a result that a row holds.

    Attributes:
        result: The result.
        start: Its first token in the row; greater than 0 if the row already holds its prompt.
        end: Behind its last token in the row.
        prompt_id: Id of its prompt.
        completion_id: Id of what is not prompt.
        pixel_values: Patches of the images in this part, or None.
        image_grid_thw: Grids of these images, or None.
    """

    result: TokenizedResult
    start: int
    end: int
    prompt_id: int
    completion_id: int
    pixel_values: torch.Tensor | None
    image_grid_thw: torch.Tensor | None

    def __len__(self) -> int:
        return self.end - self.start


@dataclass
class Row:
    """A row of a packed batch.

    Attributes:
        segments: Its parts, in order.
        prompts: For each prompt id that it holds, the result that brought the prompt.
        num_tokens: Sum of the parts' lengths.
    """

    segments: list[Segment] = field(default_factory=list)
    prompts: dict[int, TokenizedResult] = field(default_factory=dict)
    num_tokens: int = 0

    def add(self, segment: Segment) -> None:
        """Append a part."""
        self.segments.append(segment)
        self.num_tokens += len(segment)
        if segment.start == 0:
            self.prompts.setdefault(segment.prompt_id, segment.result)


def plan_rows(results: Sequence[TokenizedResult], row_tokens: int, fit: Fit, rng: random.Random) -> list[Row]:
    """Lay results into rows, in order, storing a prompt once for all of its completions in a row.

    Args:
        results: Longer ones than a row are cut. Those without a trained token after their prompt are left out.
        row_tokens: Length of a row.
        fit: "first" looks for room in all rows, those that hold the prompt first; "next" only in the newest row.
        rng: Draws completion ids.
    """
    rows: list[Row] = []
    free = np.zeros(64, dtype=np.int64)
    rows_with_prompt: defaultdict[int, array[int]] = defaultdict(lambda: array("q"))
    for result in results:
        end = min(len(result.token_ids), row_tokens)
        if 1 not in result.assistant_mask[result.prompt_length : end]:
            continue
        oldest = 0 if fit == "first" else max(len(rows) - 1, 0)
        candidates = np.frombuffer(rows_with_prompt[result.prompt_id] or _NO_ROWS, dtype=np.int64)
        candidates = candidates[candidates >= oldest]  # a copy: an array that is looked into cannot grow
        index = _first_with_room(free[candidates], end - result.prompt_length)
        if index is not None and _can_share(result, rows[candidates[index]].prompts[result.prompt_id]):
            index = int(candidates[index])
        else:
            index = _first_with_room(free[oldest : len(rows)], end)
            index = len(rows) if index is None else oldest + index
        if index == len(rows):
            rows.append(Row())
            if index == len(free):
                free = np.concatenate([free, np.zeros_like(free)])
        row = rows[index]
        segment = _segment(result, end, row, rng)
        if segment.prompt_id not in row.prompts:
            rows_with_prompt[segment.prompt_id].append(index)
        row.add(segment)
        free[index] = row_tokens - row.num_tokens
    return rows


def _first_with_room(free: npt.NDArray[np.int64], needed: int) -> int | None:
    has_room = free >= needed
    return int(has_room.argmax()) if has_room.any() else None


def _segment(result: TokenizedResult, end: int, row: Row, rng: random.Random) -> Segment:
    holder = row.prompts.get(result.prompt_id)
    prompt_id, start = result.prompt_id, 0
    pixel_values, image_grid_thw = result.pixel_values, result.image_grid_thw
    if holder is not None and _can_share(result, holder):
        start = result.prompt_length
        pixel_values, image_grid_thw = _images_after_prompt(result)
    elif holder is not None:
        # A second copy of the prompt under the same id would be visible to the completions of the first.
        prompt_id = rng.randint(1, MAX_RANDOM_ID)
    return Segment(result, start, end, prompt_id, rng.randint(1, MAX_RANDOM_ID), pixel_values, image_grid_thw)


def _can_share(result: TokenizedResult, holder: TokenizedResult) -> bool:
    """Tell whether a row that holds the prompt of `holder` needs only the completion of `result`."""
    if result.prompt_length != holder.prompt_length:
        return False
    if result.pixel_values is None or result.image_starts:
        return True
    # Where its images are is not known: inside the prompt, if the holder has the same ones.
    return holder.pixel_values is not None and torch.equal(result.pixel_values, holder.pixel_values)


def _images_after_prompt(result: TokenizedResult) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    num_in_prompt = sum(start < result.prompt_length for start in result.image_starts)
    if result.pixel_values is None or result.image_grid_thw is None or num_in_prompt == len(result.image_starts):
        return None, None
    before = num_patches(result.image_grid_thw[:num_in_prompt])
    return result.pixel_values[before:], result.image_grid_thw[num_in_prompt:]
