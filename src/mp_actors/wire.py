"""What travels between an actor's two processes: length-prefixed pickles over a socket pair."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import threading
import traceback
from dataclasses import dataclass
from typing import Any

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Start:
    """First frame to the child: how to find code, and the object itself, pickled apart so that paths are set first."""

    sys_path: list[str]
    title: str | None
    pickled_object: bytes


@dataclass(frozen=True)
class Call:
    """Call a method; `args` and `kwargs` travel inside."""

    call_id: int
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Cancel:
    """Cancel a call; its reply still comes."""

    call_id: int


@dataclass(frozen=True)
class Close:
    """Cancel all calls, close the object, end the process."""


@dataclass(frozen=True)
class Reply:
    """The end of a call: a value, or an error."""

    call_id: int
    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True)
class Item:
    """One value of an async generator."""

    call_id: int
    value: Any


@dataclass(frozen=True)
class Event:
    """Something that the object tells its owner unasked."""

    value: Any


class Channel:
    """One end of the socket pair. Sending is safe from several threads; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._send_lock = threading.Lock()

    def send(self, frame: Any) -> None:
        """Send one frame.

        Raises:
            OSError: The other end is gone.
            Exception: The frame cannot be pickled; nothing was sent then.
        """
        body = pickle.dumps(frame, protocol=pickle.HIGHEST_PROTOCOL)
        with self._send_lock:
            self._connection.sendall(_LENGTH.pack(len(body)))
            self._connection.sendall(body)

    def receive(self) -> Any:
        """Return the next frame.

        Raises:
            EOFError: The other end is gone.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return pickle.loads(self._read(length))  # noqa: S301 - our own child or parent

    def close(self) -> None:
        """Close this end; the other end's `receive` raises EOFError."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _read(self, size: int) -> bytearray:
        buffer = bytearray(size)
        view = memoryview(buffer)
        filled = 0
        while filled < size:
            try:
                count = self._connection.recv_into(view[filled:])
            except OSError as err:
                raise EOFError("connection lost") from err
            if count == 0:
                raise EOFError("connection closed")
            filled += count
        return buffer


def portable_error(error: BaseException) -> BaseException:
    """Return an exception that survives pickling, with the child's traceback as a note."""
    text = "".join(traceback.format_exception(error)).rstrip()
    error.add_note(f"In the child process:\n{text}")
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - a round trip of our own value
    except Exception:  # noqa: BLE001 - any failure to pickle has the same answer
        return RuntimeError(f"{type(error).__name__}: {error}\n{text}")
    return error
