"""A service whose trainer fails, or waits, where a test wants it to: in the caller's process or in a child.

Orders travel through a folder that an environment variable names, so that they reach whatever process trains.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from art import dev
from art.unsloth.service import UnslothService
from tests.support.waiting import wait_until

FOLDER_VARIABLE = "ART_TEST_FAULTS"
LONGEST_WAIT_S = 120.0


class Faults:
    """The test's side: gives orders and looks whether they have been reached.

    Args:
        folder: Where orders are written; created.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def order(self, at: str, do: str, *, after: int = 0) -> None:
        """Have the trainer do something once at a place.

        Args:
            at: "loss", where a row's loss has been computed; "saving", where the adapter's weights are written and the
                other files of the checkpoint are not; or "loading", where the engine is about to be given the adapter.
            do: "wait" until `go_on`, "nan" for every row until `clear`, "disk_full:N" to let no file grow beyond N
                bytes, or the name of an exception.
            after: How often the place is passed before.
        """
        self.clear()
        path = self.folder / "order.tmp"
        path.write_text(json.dumps({"at": at, "do": do, "after": after}))
        path.rename(self.folder / "order.json")

    def clear(self) -> None:
        """Take the order back."""
        for name in ("order.json", "reached", "go_on"):
            (self.folder / name).unlink(missing_ok=True)

    def wait_reached(self, timeout_s: float = 60.0) -> None:
        """Wait until the trainer has come to the place."""
        wait_until((self.folder / "reached").exists, timeout_s)

    def go_on(self) -> None:
        """Let a waiting trainer go on."""
        (self.folder / "go_on").touch()


@dataclasses.dataclass
class FaultyService(UnslothService):
    """An `UnslothService` that follows orders; nothing else about it differs."""

    async def start_openai_server(self, config: dev.OpenAIServerConfig | None) -> tuple[str, int]:
        """Make this process's trainer follow orders, then start."""
        follow_orders(Path(os.environ[FOLDER_VARIABLE]))
        return await super().start_openai_server(config)


def wait_for_order() -> None:
    """Wait until the test has given an order."""
    wait_until((Path(os.environ[FOLDER_VARIABLE]) / "order.json").exists, LONGEST_WAIT_S)


def follow_orders(folder: Path) -> None:
    """Patch the trainer of this process, once."""
    from art.unsloth import train, trainer
    from art.vllm import serving_registry

    if getattr(train.loss_fn, "follows_orders", False):
        return
    real_loss, real_save, real_save_all = train.loss_fn, trainer.save_adapter, trainer.LoraTrainer.save
    real_load = serving_registry.load_adapter
    orders = _Orders(folder)

    def loss_fn(*args: Any, **kwargs: Any) -> Any:
        loss = real_loss(*args, **kwargs)
        order = orders.take("loss")
        if order == "nan":
            loss.mean_policy_loss = loss.mean_policy_loss * float("nan")
        return loss

    def save_adapter(*args: Any, **kwargs: Any) -> None:
        real_save(*args, **kwargs)
        orders.take("saving")

    def save(*args: Any, **kwargs: Any) -> None:
        with orders.small_disk():
            real_save_all(*args, **kwargs)

    async def load_adapter(*args: Any, **kwargs: Any) -> int:
        orders.take("loading")
        return await real_load(*args, **kwargs)

    serving_registry.load_adapter = load_adapter
    loss_fn.follows_orders = True  # type: ignore[attr-defined]
    train.loss_fn = loss_fn
    trainer.save_adapter = save_adapter
    trainer.LoraTrainer.save = save  # type: ignore[method-assign]


class _Orders:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._passed = 0

    def take(self, place: str) -> str | None:
        """Carry out the order for this place, if there is one; return what it was."""
        order = self._read(place)
        if order is None:
            return None
        if self._passed < order["after"]:
            self._passed += 1
            return None
        if order["do"].startswith("disk_full:"):
            return None  # see small_disk
        (self._folder / "reached").touch()
        if order["do"] == "nan":
            return "nan"
        self._finish()
        if order["do"] == "wait":
            deadline = time.monotonic() + LONGEST_WAIT_S
            while not (self._folder / "go_on").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        else:
            raise _make_error(order["do"])
        return str(order["do"])

    @contextlib.contextmanager
    def small_disk(self) -> Iterator[None]:
        """Let files grow no further than ordered, as on a full disk."""
        import resource

        order = self._read("saving")
        if order is None or not order["do"].startswith("disk_full:"):
            yield
            return
        self._finish()
        (self._folder / "reached").touch()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(order["do"].partition(":")[2]), limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    def _read(self, place: str) -> Any:
        try:
            order = json.loads((self._folder / "order.json").read_text())
        except FileNotFoundError:
            return None
        return order if order["at"] == place else None

    def _finish(self) -> None:
        self._passed = 0
        (self._folder / "order.json").unlink(missing_ok=True)


def _make_error(name: str) -> BaseException:
    if name == "torch.OutOfMemoryError":
        import torch

        return torch.OutOfMemoryError("CUDA out of memory (ordered by a test)")
    if name == "ENOSPC":
        return OSError(errno.ENOSPC, "No space left on device (ordered by a test)")
    if name == "AdapterRefusedError":
        from art.vllm.serving_registry import AdapterRefusedError

        return AdapterRefusedError("the engine refused (ordered by a test)")
    kinds: dict[str, type[Exception]] = {"MemoryError": MemoryError, "RuntimeError": RuntimeError}
    return kinds[name](f"{name} ordered by a test")
