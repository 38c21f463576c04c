"""Which adapters are live, where their files are, and when they may go. No HTTP, no engine."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from art.checkpoint_manifest import TRAINER_STATE_FILE
from art.checkpoints import ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE, is_process_alive, verify_checkpoint
from art.errors import AdapterLoadError, CheckpointError
from art.folders import link_tree
from art.inference.runtime import AdapterFiles

logger = logging.getLogger(__name__)

SERVING_FOLDER = "serving"
_UNSERVED_FILES = {TRAINER_STATE_FILE}  # large, and of no use to the engine


class AdapterRegistry:
    """The adapters of one model on one server.

    Served files are links or copies in a folder of our own, since the engine reads an adapter again after paging it
    out: were the files gone by then, the engine would die. They go when no request uses the adapter any more.

    Args:
        model_name: The part of the inference name before `@`.
        model_dir: The model's output folder; files are served from `serving/` below it.
    """

    def __init__(self, model_name: str, model_dir: Path) -> None:
        self.model_name = model_name
        self.served_step: int | None = None
        self.live: dict[int, AdapterFiles] = {}
        self._leases: Counter[int] = Counter()
        self._unloaded: list[AdapterFiles] = []
        self._names_used: set[str] = set()
        root = model_dir / SERVING_FOLDER
        _remove_abandoned(root)
        self._folder = root / f"{os.getpid()}-{secrets.token_hex(4)}"

    def name_of(self, step: int) -> str:
        """Return the inference name of a step."""
        return f"{self.model_name}@{step}"

    def stage(self, step: int, checkpoint_dir: Path) -> AdapterFiles:
        """Check a checkpoint and put its files where only we delete.

        Raises:
            CheckpointIncompleteError: Files are absent or broken.
            CheckpointError: The file system refused.
        """
        verify_checkpoint(checkpoint_dir)
        path = self._folder / f"{step:04d}-{secrets.token_hex(3)}"
        try:
            link_tree(checkpoint_dir, path)
            for name in _UNSERVED_FILES:
                (path / name).unlink(missing_ok=True)
        except OSError as err:
            shutil.rmtree(path, ignore_errors=True)
            raise CheckpointError(f"adapter files of step {step} not copied to {path} for serving: {err}") from err
        return AdapterFiles(step=step, name=self.name_of(step), path=path, source=checkpoint_dir)

    def is_same_files(self, adapter: AdapterFiles, checkpoint_dir: Path) -> bool:
        """Tell whether a live adapter was made from exactly these files."""
        ours, theirs = adapter.path / ADAPTER_WEIGHTS_FILE, checkpoint_dir / ADAPTER_WEIGHTS_FILE
        try:
            return ours.samefile(theirs) or (
                ours.stat().st_size == theirs.stat().st_size and ours.read_bytes() == theirs.read_bytes()
            )
        except OSError:
            return False

    def claim_name(self, name: str) -> bool:
        """Note that a name is about to be loaded; False when it was loaded before in this server's life."""
        is_new = name not in self._names_used
        self._names_used.add(name)
        return is_new

    def forget_names(self) -> None:
        """A new server knows nothing: no name has been used there."""
        self._names_used.clear()

    def commit(self, adapter: AdapterFiles) -> None:
        """Make an adapter that the server has confirmed the one that rollouts get."""
        previous = self.live.get(adapter.step)
        if previous is not None and previous is not adapter:
            self._unloaded.append(previous)
        self.live[adapter.step] = adapter
        self.served_step = adapter.step

    def add_older(self, adapter: AdapterFiles) -> None:
        """Note an older step that is served again, without changing what rollouts get by default."""
        self.live[adapter.step] = adapter

    def discard(self, adapter: AdapterFiles) -> None:
        """Remove the files of an adapter that never became live."""
        shutil.rmtree(adapter.path, ignore_errors=True)

    @contextmanager
    def lease(self, step: int) -> Iterator[None]:
        """Keep a step live for as long as the block runs."""
        self.acquire(step)
        try:
            yield
        finally:
            self.release(step)

    def acquire(self, step: int) -> None:
        """Keep a step live until `release`."""
        self._leases[step] += 1

    def release(self, step: int) -> None:
        """Give one `acquire` back."""
        self._leases[step] -= 1
        if self._leases[step] <= 0:
            del self._leases[step]

    def leased_steps(self) -> set[int]:
        """Return the steps that somebody holds."""
        return set(self._leases)

    def retirable(self, *, keep_newest: int, keep_steps: frozenset[int] = frozenset()) -> list[AdapterFiles]:
        """List the live adapters that nothing needs: not among the newest, not leased, not the served one."""
        newest = set(sorted(self.live)[-keep_newest:]) if keep_newest > 0 else set()
        needed = newest | keep_steps | set(self._leases) | {self.served_step}
        return [adapter for step, adapter in sorted(self.live.items()) if step not in needed]

    def retire(self, adapter: AdapterFiles) -> None:
        """Note that a live adapter's name is unloaded; its files stay until `sweep` finds it unused."""
        if self.live.get(adapter.step) is adapter:
            del self.live[adapter.step]
        self._unloaded.append(adapter)

    def sweep(self, in_flight: dict[str, int]) -> list[AdapterFiles]:
        """Remove the files of unloaded adapters that no request uses; return those that were removed."""
        swept = [adapter for adapter in self._unloaded if not in_flight.get(adapter.name)]
        for adapter in swept:
            shutil.rmtree(adapter.path, ignore_errors=True)
            self._unloaded.remove(adapter)
        return swept

    def close(self) -> None:
        """Remove all served files; only after the server is gone."""
        shutil.rmtree(self._folder, ignore_errors=True)
        try:
            self._folder.parent.rmdir()
        except OSError:
            return  # another run serves from beside ours


def check_adapter(adapter: AdapterFiles, *, max_lora_rank: int, base_model_name: str) -> None:
    """Refuse before sending what the engine would choke on.

    Raises:
        AdapterLoadError: The rank is too high, the adapter brings whole modules, or its name is the base model's.
    """
    config = json.loads((adapter.path / ADAPTER_CONFIG_FILE).read_text(encoding="utf-8"))
    problems = []
    ranks = [config.get("r", 0), *(config.get("rank_pattern") or {}).values()]
    if max(ranks) > max_lora_rank:
        problems.append(
            f"its rank {max(ranks)} is above the engine's max_lora_rank {max_lora_rank}; "
            "set engine_args['max_lora_rank'] or a lower peft_args['r']"
        )
    if config.get("modules_to_save"):
        problems.append(f"modules_to_save={config['modules_to_save']} cannot be served by the engine")
    if adapter.name == base_model_name:
        problems.append("its name is the base model's own, so the base model would answer")
    if problems:
        raise AdapterLoadError(
            f"adapter {adapter.name} not loaded from {adapter.path}: {'; '.join(problems)}",
            step=adapter.step,
            path=str(adapter.path),
        )


def _remove_abandoned(root: Path) -> None:
    if not root.is_dir():
        return
    for path in root.iterdir():
        owner = path.name.split("-")[0]
        if owner.isdigit() and not is_process_alive(int(owner)):
            shutil.rmtree(path, ignore_errors=True)
            logger.info("served files of a gone process removed: path=%s", path)
