"""Batches of supervised fine-tuning on disk: written part by part while they are tokenized, read part by part.

No process ever holds the tokens of a whole data set, and what is wrong with a row is known before anything is trained.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from art.dev.settings import ToolSchemaFormat
from art.errors import NoTrainableTokensError
from art.preprocessing.chat import ChatRenderer
from art.preprocessing.sft import SFTBatch, SFTRemarks, tokenize_with
from art.preprocessing.tokenizer_protocol import Tokenizer
from art.trajectories import Trajectory

_FOLDER_PREFIX = "sft-"
_PART_TRAJECTORIES = 256


class SFTBatches(Protocol):
    """The batches of a call, as many as it has length."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[SFTBatch]: ...


@dataclass(frozen=True)
class StoredPart:
    """A file with some whole batches, and counts of what is in them.

    Attributes:
        path: The file.
        num_batches: Batches, the untrainable ones included.
        num_trajectories: Trajectories, without the dropped ones.
        num_tokens: All tokens.
        num_trainable_tokens: Trained tokens.
        num_dropped_trajectories: Trajectories of which a sequence was too long.
        num_untrainable_batches: Batches without a token to train.
    """

    path: str
    num_batches: int
    num_trajectories: int
    num_tokens: int
    num_trainable_tokens: int
    num_dropped_trajectories: int
    num_untrainable_batches: int


@dataclass(frozen=True)
class StoredSFTBatches:
    """Batches in files; reading them takes the memory of one part.

    Attributes:
        parts: The files, in order.
        learning_rates: The rate of each batch.
    """

    parts: Sequence[StoredPart]
    learning_rates: Sequence[float]

    def __len__(self) -> int:
        return sum(part.num_batches for part in self.parts)

    def __iter__(self) -> Iterator[SFTBatch]:
        batches = (batch for part in self.parts for batch in _read(Path(part.path)))
        for batch, rate in zip(batches, self.learning_rates, strict=True):
            yield dataclasses.replace(batch, learning_rate=rate)

    def metrics(self) -> dict[str, float]:
        """Return the counts over all batches, as `data/step_*`."""
        return {
            f"data/step_{name}": float(self._total(field))
            for name, field in (
                ("num_trajectories", "num_trajectories"),
                ("trainer_tokens", "num_trainable_tokens"),
                ("num_trajectories_dropped_overlong", "num_dropped_trajectories"),
                ("num_batches_skipped_untrainable", "num_untrainable_batches"),
            )
        }

    def require_trainable(self) -> None:
        """Raise if no batch has a token to train.

        Raises:
            NoTrainableTokensError: Says why.
        """
        if self._total("num_trainable_tokens"):
            return
        kept, dropped = self._total("num_trajectories"), self._total("num_dropped_trajectories")
        raise NoTrainableTokensError(
            f"none of the {kept + dropped} trajectories has a token to train: {dropped} are longer than the model's "
            f"max_seq_length, {kept} hold no assistant message"
        )

    def _total(self, field: str) -> int:
        return sum(getattr(part, field) for part in self.parts)


def part_size(batch_size: int) -> int:
    """Return how many trajectories to store at once: about 256, in whole batches."""
    return max(1, _PART_TRAJECTORIES // batch_size) * batch_size


def make_store(tensors_dir: Path) -> Path:
    """Make an empty folder for the batches of one call."""
    tensors_dir.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=tensors_dir))


def remove_abandoned_stores(tensors_dir: Path) -> None:
    """Delete what calls left behind that did not come to their end. For whoever owns the model's folder alone."""
    for folder in tensors_dir.glob(f"{_FOLDER_PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)


def store_part(
    store: Path,
    trajectories: Sequence[Trajectory],
    *,
    first_index: int,
    batch_size: int,
    tokenizer: Tokenizer,
    max_seq_length: int,
    chat_template_kwargs: Mapping[str, Any] | None,
    tool_schema_format: ToolSchemaFormat = "vllm_openai",
) -> StoredPart:
    """Tokenize trajectories and write them as one file. Blocks.

    Args:
        store: From `make_store`.
        trajectories: Whole batches; only the last part of a call may end with a shorter one.
        first_index: Number of the first trajectory within the whole call.
        batch_size: Trajectories in a batch.
        tokenizer: The base model's, with the chat template that the server uses.
        max_seq_length: Longer sequences are dropped.
        chat_template_kwargs: Variables for the chat template, the same as at inference.
        tool_schema_format: Shape of tools in the template; by default that of vLLM's server.

    Raises:
        TokenizationError: A trajectory is broken; names it.
        OSError: The file system refused.
    """
    import torch

    renderer = ChatRenderer(tokenizer, chat_template_kwargs, tool_schema_format)
    remarks = SFTRemarks()
    batches = [
        tokenize_with(
            renderer,
            trajectories[start : start + batch_size],
            0.0,  # set when the batch is read
            max_seq_length,
            first_index + start,
            remarks,
        )
        for start in range(0, len(trajectories), batch_size)
    ]
    remarks.log(max_seq_length)
    path = store / f"{first_index:09d}.pt"
    try:
        torch.save([dataclasses.asdict(batch) for batch in batches], path)
    except RuntimeError as err:  # a full disk, for one
        raise OSError(f"{path} cannot be written: {err}") from err
    return StoredPart(
        path=str(path),
        num_batches=len(batches),
        num_trajectories=sum(batch.num_trajectories for batch in batches),
        num_tokens=sum(batch.num_tokens for batch in batches),
        num_trainable_tokens=sum(batch.num_trainable_tokens for batch in batches),
        num_dropped_trajectories=sum(batch.num_dropped_trajectories for batch in batches),
        num_untrainable_batches=sum(not batch.num_trainable_tokens for batch in batches),
    )


def _read(path: Path) -> list[SFTBatch]:
    import torch

    return [SFTBatch(**fields) for fields in torch.load(path, weights_only=True)]
