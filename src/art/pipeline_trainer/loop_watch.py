"""Notice an event loop that is held up: no watchdog on it could, and nothing that runs on it gets on."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

logger = logging.getLogger(__name__)

BEAT_INTERVAL_S = 1.0
NOTICE_AFTER_S = 30.0  # far longer than anything that belongs on an event loop


class LoopWatch:
    """Logs, from a thread, where the event loop is held up, for how long, and what every part was doing.

    Args:
        report: Gives what every part is doing; called in that thread.
    """

    def __init__(self, report: Callable[[], str]) -> None:
        self._report = report
        self._beat = time.monotonic()
        self._stop = threading.Event()

    async def run(self) -> None:
        """Watch the running loop until cancelled."""
        self._beat = time.monotonic()
        arguments = (threading.get_ident(), BEAT_INTERVAL_S, NOTICE_AFTER_S)
        threading.Thread(target=self._watch, args=arguments, name="pipeline-loop-watch", daemon=True).start()
        try:
            while True:
                self._beat = time.monotonic()
                await asyncio.sleep(BEAT_INTERVAL_S)
        finally:
            self._stop.set()

    def _watch(self, thread_id: int, interval_s: float, notice_after_s: float) -> None:
        notice_at_s = notice_after_s
        while not self._stop.wait(interval_s):
            held_s = time.monotonic() - self._beat
            if held_s < notice_after_s:
                notice_at_s = notice_after_s
            elif held_s >= notice_at_s:
                notice_at_s = 2 * held_s
                self._tell(thread_id, held_s)

    def _tell(self, thread_id: int, held_s: float) -> None:
        frame = sys._current_frames().get(thread_id)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "  unknown\n"
        try:
            report = self._report()
        except Exception as err:  # noqa: BLE001 - read while another thread may change it
            report = f"  no report: {err!r}"
        logger.error(
            "the event loop has been held up for %.0f s, so that rollouts, training and evaluations stand still; code "
            "that blocks belongs in asyncio.to_thread(). It is at:\n%s%s",
            held_s,
            stack,
            report,
        )
