"""Have signals stop a pipeline: the first one asks, the second one cancels."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stop_on_signals(on_signal: Callable[[signal.Signals, int], None]) -> Iterator[None]:
    """Listen to SIGINT and SIGTERM during the block, and give their handlers back afterwards.

    Does nothing outside the main thread, where Python lets nobody handle signals. The third signal goes to the handler
    that was there before, for a program whose event loop is stuck.

    Args:
        on_signal: Called on the event loop with the signal, and how many have come.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    previous: dict[signal.Signals, Any] = {}
    count = 0

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count > 2:
            restore()
            signal.raise_signal(number)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(on_signal, signal.Signals(number), count)

    try:
        for number in STOP_SIGNALS:
            previous[number] = signal.signal(number, handle)
        yield
    finally:
        restore()
