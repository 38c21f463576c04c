"""A trainer whose steps end when a test lets them, in whatever process it works."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from art.unsloth.worker import TrainerWorker
from tests.support.tiny_checkpoints import write_adapter

LONGEST_HOLD_S = 60.0  # so that no process outlives a test that fails


class HeldTrainer:
    """Stands for `LoraTrainer`: waits in a row, or in saving, while a file `hold-row` or `hold-save` exists.

    A step has two rows, or as many as are wanted until it is cancelled where there is a file `endless`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def train(self, packed: Any, settings: Any, *, verbose: bool) -> Iterator[dict[str, float]]:
        for _ in itertools.count() if (self._folder / "endless").exists() else range(2):
            self._hold("row")
            yield {"loss/train": 0.5}

    def save(self, path: Path, include_optimizer: bool = True) -> None:
        self._hold("save")
        write_adapter(path)

    def snapshot(self) -> None:
        return None

    def restore(self, before: None) -> None:
        return None

    def onload(self) -> None:
        return None

    def offload(self) -> None:
        return None

    def close(self) -> None:
        return None

    def _hold(self, where: str) -> None:
        until = time.monotonic() + LONGEST_HOLD_S
        while (self._folder / f"hold-{where}").exists() and time.monotonic() < until:
            (self._folder / f"in-{where}").touch()
            time.sleep(0.005)


class HeldWorker(TrainerWorker):
    """A worker with such a trainer; steps are of the model in `model` below its folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__("base", {}, str(folder / "model"), save_optimizer=False)
        self._folder = folder

    def _load(self) -> int:
        self._trainer = HeldTrainer(self._folder)  # type: ignore[assignment]
        return 0

    def _prepare(self, *arguments: Any) -> Any:
        assert self._trainer is not None
        self._trainer._hold("prepare")  # type: ignore[attr-defined]
        return None
