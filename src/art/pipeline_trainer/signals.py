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

OnSignal = Callable[[signal.Signals, int], None]


class _Listener:
    """The handler of one run. Several runs may listen at once, and end in any order: each tells the one before it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_signal: OnSignal) -> None:
        self.previous: dict[signal.Signals, Any] = {}
        self._loop = loop
        self._on_signal = on_signal
        self._count = 0
        self._has_ended = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 2:
            for each in STOP_SIGNALS:
                signal.signal(each, self._before(each, only_ended=False))
            signal.raise_signal(number)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._on_signal, signal.Signals(number), self._count)
        before = self._before(signal.Signals(number), only_ended=True)
        if isinstance(before, _Listener):
            before(number, frame)

    def listen(self) -> None:
        """Take the place of the handlers that are there."""
        for number in STOP_SIGNALS:
            self.previous[number] = signal.signal(number, self)

    def stop(self) -> None:
        """Give the handlers back, except those that another run has taken meanwhile."""
        self._has_ended = True
        for number in self.previous:
            current: Any = signal.getsignal(number)
            if current is self:
                signal.signal(number, self._before(number, only_ended=True))

    def _before(self, number: signal.Signals, *, only_ended: bool) -> Any:
        """Give the handler before this one, passing over other runs': all of them, or those that have ended."""
        handler = self.previous.get(number)
        while isinstance(handler, _Listener) and (handler._has_ended or not only_ended):
            handler = handler.previous.get(number)
        return handler if handler is not None else signal.SIG_DFL


@contextlib.contextmanager
def stop_on_signals(on_signal: OnSignal) -> Iterator[None]:
    """Listen to SIGINT and SIGTERM during the block, and give their handlers back afterwards.

    Does nothing outside the main thread, where Python lets nobody handle signals. The third signal goes to the handler
    that was there before, for a program whose event loop is stuck.

    Args:
        on_signal: Called on the event loop with the signal, and how many have come.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    listener = _Listener(asyncio.get_running_loop(), on_signal)
    try:
        listener.listen()
        yield
    finally:
        listener.stop()
