"""The child's side of an actor: `python -m mp_actors.child FD`."""

from __future__ import annotations

import asyncio
import logging
import pickle
import signal
import socket
import sys
import threading
from typing import Any

from mp_actors.dispatch import close_object, run_method
from mp_actors.wire import Call, Cancel, Channel, Close, Event, Item, Reply, Start, portable_error

logger = logging.getLogger(__name__)


class _Host:
    def __init__(self, channel: Channel, target: Any) -> None:
        self._channel = channel
        self._target = target
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._closing = asyncio.Event()

    async def serve(self) -> None:
        """Serve calls until the parent says close or is gone."""
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, self._closing.set)
        if hasattr(self._target, "on_event"):
            self._target.on_event = lambda value: self._send(Event(value))
        threading.Thread(target=self._receive, args=(loop,), name="actor-receive", daemon=True).start()
        await self._closing.wait()
        calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await close_object(self._target)

    def _receive(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while True:
                frame = self._channel.receive()
                loop.call_soon_threadsafe(self._handle, frame)
        except EOFError:
            loop.call_soon_threadsafe(self._closing.set)

    def _handle(self, frame: Any) -> None:
        if isinstance(frame, Call):
            self._calls[frame.call_id] = asyncio.get_running_loop().create_task(self._run(frame))
        elif isinstance(frame, Cancel):
            if frame.call_id in self._calls:
                self._calls[frame.call_id].cancel()
        elif isinstance(frame, Close):
            self._closing.set()

    async def _run(self, call: Call) -> None:
        def emit(value: Any) -> None:
            self._channel.send(Item(call.call_id, value))

        try:
            value = await run_method(self._target, call.method, call.args, call.kwargs, emit)
            reply = Reply(call.call_id, value=value)
        except asyncio.CancelledError:
            reply = Reply(call.call_id, error=asyncio.CancelledError())
        except BaseException as err:  # noqa: BLE001 - every call ends with a reply, whatever it raised
            reply = Reply(call.call_id, error=portable_error(err))
        finally:
            del self._calls[call.call_id]
        self._send(reply)

    def _send(self, frame: Reply | Event) -> None:
        try:
            self._channel.send(frame)
        except OSError:
            self._closing.set()
        except Exception as err:  # noqa: BLE001 - an unpicklable result must not leave the caller waiting
            if isinstance(frame, Reply):
                error = RuntimeError(f"the result of a call cannot be sent between processes: {err}")
                self._channel.send(Reply(frame.call_id, error=error))
            else:
                logger.warning("event not sent: %s", err)


def main() -> None:
    """Entry point of the child."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    start: Start = channel.receive()
    sys.path[:] = start.sys_path
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if start.title:
        _set_title(start.title)
    try:
        target = pickle.loads(start.pickled_object)  # noqa: S301 - from our own parent
    except BaseException as err:  # the parent is waiting for the first reply
        channel.send(Reply(0, error=portable_error(err)))
        raise
    channel.send(Reply(0))
    asyncio.run(_Host(channel, target).serve())
    channel.close()


def _set_title(title: str) -> None:
    try:
        from setproctitle import setproctitle
    except ImportError:
        return
    setproctitle(title)


if __name__ == "__main__":
    main()
