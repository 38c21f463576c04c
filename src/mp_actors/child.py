"""The child's side of an actor: `python -m mp_actors.child FD`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import signal
import socket
import sys
import threading
from typing import Any

from mp_actors.dispatch import close_object, run_method
from mp_actors.wire import Call, Cancel, Channel, Close, Event, Item, Reply, Start, pack, portable_error, unpack

logger = logging.getLogger(__name__)


class _Host:
    def __init__(self, channel: Channel, target: Any) -> None:
        self._channel = channel
        self._target = target
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._cancelled_by_caller: set[int] = set()
        self._closing = asyncio.Event()

    async def serve(self) -> None:
        """Serve calls until the parent says close or is gone."""
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, self._closing.set)
        if hasattr(self._target, "on_event"):
            self._target.on_event = self._send_event
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
                arguments = _read_arguments(frame) if isinstance(frame, Call) else None
                loop.call_soon_threadsafe(self._handle, frame, arguments)
        except EOFError:
            with contextlib.suppress(RuntimeError):  # the loop is closed: this process is ending anyway
                loop.call_soon_threadsafe(self._closing.set)

    def _handle(self, frame: Any, arguments: Any) -> None:
        if isinstance(frame, Call):
            self._calls[frame.call_id] = asyncio.get_running_loop().create_task(self._run(frame, arguments))
        elif isinstance(frame, Cancel):
            if frame.call_id in self._calls:
                self._cancelled_by_caller.add(frame.call_id)
                self._calls[frame.call_id].cancel()
        elif isinstance(frame, Close):
            self._closing.set()

    async def _run(self, call: Call, arguments: Any) -> None:
        def emit(value: Any) -> None:
            self._channel.send(Item(call.call_id, pack(value)))

        value: Any = None
        error: BaseException | None = None
        try:
            if isinstance(arguments, BaseException):
                raise arguments
            args, kwargs = arguments
            value = await run_method(self._target, call.method, args, kwargs, emit)
        except asyncio.CancelledError as err:
            # To a caller who did not ask for it, it must not look as if the caller had been cancelled.
            was_asked = call.call_id in self._cancelled_by_caller
            error = err if was_asked else RuntimeError(f"{call.method} was cut off: its process is being closed")
        except BaseException as err:  # noqa: BLE001 - every call ends with a reply, whatever it raised
            error = portable_error(err)
        finally:
            del self._calls[call.call_id]
            self._cancelled_by_caller.discard(call.call_id)
        self._send(Reply(call.call_id, _pack_outcome(value, error)))

    def _send_event(self, value: Any) -> None:
        try:
            packed = pack(value)
        except Exception as err:  # noqa: BLE001 - nobody waits for an event
            logger.warning("event not sent: %s", err)
            return
        self._send(Event(packed))

    def _send(self, frame: Reply | Event) -> None:
        try:
            self._channel.send(frame)
        except OSError:
            self._closing.set()


def _read_arguments(call: Call) -> Any:
    """Return a call's arguments, or what went wrong in reading them."""
    try:
        return unpack(call.arguments)
    except Exception as err:  # noqa: BLE001 - becomes the call's reply
        return TypeError(f"the arguments of {call.method} cannot be read in the child process: {err!r}")


def _pack_outcome(value: Any, error: BaseException | None) -> bytes:
    try:
        return pack((value, error))
    except Exception as err:  # noqa: BLE001 - an unpicklable result must not leave the caller waiting
        return pack((None, RuntimeError(f"the result of a call cannot be sent between processes: {err}")))


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
        channel.send(Reply(0, pack((None, portable_error(err)))))
        raise
    channel.send(Reply(0, pack((None, None))))
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
