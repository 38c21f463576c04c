"""What travels between an actor's two processes: length-prefixed pickles over a socket pair.

Values of the caller's and the object's own travel pickled inside a frame of ours, so that one that cannot be read at
the other end fails its own call and nothing else.
"""

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
    """Call a method; `arguments` is `pack((args, kwargs))`."""

    call_id: int
    method: str
    arguments: bytes


@dataclass(frozen=True)
class Cancel:
    """Cancel a call; its reply still comes."""

    call_id: int


@dataclass(frozen=True)
class Close:
    """Cancel all calls, close the object, end the process."""


@dataclass(frozen=True)
class Reply:
    """The end of a call; `outcome` is `pack((value, error))`, one of them None."""

    call_id: int
    outcome: bytes


@dataclass(frozen=True)
class Item:
    """One value of an async generator, packed."""

    call_id: int
    value: bytes


@dataclass(frozen=True)
class Event:
    """Something that the object tells its owner unasked, packed."""

    value: bytes


def pack(value: Any) -> bytes:
    """Pickle a value that is not ours."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def unpack(packed: bytes) -> Any:
    """Return what was packed; raises whatever its classes raise."""
    return pickle.loads(packed)  # noqa: S301 - from our own child or parent


class Channel:
    """One end of the socket pair. Sending is safe from several threads; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._send_lock = threading.Lock()

    def send(self, frame: Any) -> None:
        """Send one frame.

        Raises:
            OSError: The other end is gone.
        """
        body = pack(frame)
        with self._send_lock:
            self._connection.sendall(_LENGTH.pack(len(body)))
            self._connection.sendall(body)

    def receive(self) -> Any:
        """Return the next frame.

        Raises:
            EOFError: The other end is gone.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return pickle.loads(self._read(length))  # noqa: S301 - from our own child or parent

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
