"""Show on a terminal what a backend is busy with. Nothing is shown where there is no terminal; the log has it all."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

logger = logging.getLogger(__name__)

REFRESH_S = 1.0


class PhaseBar:
    """One line with a phase and its running time, such as `yes-no: starting the inference engine 00:12`."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._bar: Any = None
        self._stop = threading.Event()

    def show(self, text: str) -> None:
        """Replace the phase shown."""
        logger.info("%s: %s", self._title, text)
        if not sys.stderr.isatty():
            return
        from tqdm import tqdm

        self.close()
        self._stop = threading.Event()
        self._bar = tqdm(desc=f"{self._title}: {text}", bar_format="{desc} {elapsed}", leave=False, file=sys.stderr)
        threading.Thread(target=self._tick, args=(self._bar, self._stop), name="art-phase", daemon=True).start()

    def close(self) -> None:
        """Take the line away."""
        self._stop.set()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    @staticmethod
    def _tick(bar: Any, stop: threading.Event) -> None:
        while not stop.wait(REFRESH_S):
            bar.refresh()


class RowBar:
    """A bar over the optimizer steps of one training step."""

    def __init__(self) -> None:
        self._bar: Any = None

    def show(self, step: int, done: int, total: int) -> None:
        """Move the bar; the last row takes it away."""
        if not sys.stderr.isatty():
            return
        from tqdm import tqdm

        if self._bar is None:
            self._bar = tqdm(total=total, desc=f"train step {step}", leave=False, file=sys.stderr)
        self._bar.update(done - self._bar.n)
        if done >= total:
            self.close()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
