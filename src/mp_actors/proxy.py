"""The parent's side of an actor in a child process."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import itertools
import logging
import os
import pickle
import queue
import socket
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any

from art.errors import TrainerDiedError
from art.processes import ChildProcess, describe_exit, log_tail
from mp_actors.wire import Call, Cancel, Channel, Close, Event, Item, Reply, Start, pack, unpack

logger = logging.getLogger(__name__)

CLOSE_GRACE_S = 30.0  # an engine and a trainer are taken down in this time
EXIT_CODE_WAIT_S = 5.0  # between losing the connection and learning the exit code


class _PendingCall:
    """A call on its way: items as they come, then one reply."""

    def __init__(self) -> None:
        self.reply: Future[Any] = Future()
        self.reply.set_running_or_notify_cancel()  # one who stops waiting must not cancel it for the others
        self.is_sent = False
        self.is_abandoned = False
        self.items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.on_item: Callable[[], None] | None = None

    def finish(self, value: Any, error: BaseException | None) -> None:
        with contextlib.suppress(InvalidStateError):
            if error is None:
                self.reply.set_result(value)
            else:
                self.reply.set_exception(error)
        self._wake()

    def add(self, value: Any) -> None:
        self.items.put(value)
        self._wake()

    def _wake(self) -> None:
        if self.on_item is not None:
            self.on_item()


class ActorProxy:
    """Stands for an object in a child process; use `move_to_child_process` to make one.

    Every method of the object is called through the proxy: coroutine functions and plain functions are awaited, async
    generator functions are iterated. Calls may come from any event loop.
    """

    def __init__(self, target: Any, *, log_path: Path, title: str | None, env: Mapping[str, str] | None) -> None:
        self._target_type = type(target)
        self._call_ids = itertools.count(1)
        self._pending: dict[int, _PendingCall] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._died: TrainerDiedError | None = None
        self._on_event: Callable[[Any], None] = lambda value: None
        self._on_death: Callable[[TrainerDiedError], None] = lambda error: None
        start = Start(sys_path=list(sys.path), title=title, pickled_object=pickle.dumps(target))
        ours, theirs = socket.socketpair()
        try:
            self._process = ChildProcess.start(
                [sys.executable, "-m", "mp_actors.child", str(theirs.fileno())],
                env=_child_environment(env),
                log_path=log_path,
                pass_fds=[theirs.fileno()],
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._channel = Channel(ours)
        self._ready = _PendingCall()
        self._pending[0] = self._ready
        threading.Thread(target=self._receive, name=f"actor-{self._process.pid}", daemon=True).start()
        with contextlib.suppress(OSError):  # a child that is gone already is told through the pending call
            self._channel.send(start)

    @property
    def process(self) -> ChildProcess:
        """The child process."""
        return self._process

    def on_event(self, handler: Callable[[Any], None]) -> None:
        """Have events of the object handed to `handler`, in the receiving thread."""
        self._on_event = handler

    def on_death(self, handler: Callable[[TrainerDiedError], None]) -> None:
        """Have `handler` called, in the receiving thread, when the child ends unasked; at once if it has already."""
        with self._lock:
            self._on_death = handler
            died = self._died
        if died is not None and not self._closed:
            handler(died)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        function = getattr(self._target_type, name, None)
        if not callable(function):
            raise AttributeError(
                f"{self._target_type.__name__}.{name} is not a method; only methods reach a child process"
            )
        if inspect.isasyncgenfunction(function):
            return lambda *args, **kwargs: self._iterate(name, args, kwargs)
        return lambda *args, **kwargs: self._call(name, args, kwargs)

    async def ready(self) -> None:
        """Wait until the child has the object.

        Raises:
            TrainerDiedError: It ended first.
        """
        await asyncio.wrap_future(self._ready.reply)

    async def _call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call_id, pending = next(self._call_ids), _PendingCall()
        try:
            await asyncio.to_thread(self._send_call, call_id, pending, method, args, kwargs)
            return await asyncio.wrap_future(pending.reply)
        except asyncio.CancelledError:
            self._abandon(call_id, pending)
            raise

    async def _iterate(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        call_id, pending = next(self._call_ids), _PendingCall()
        loop = asyncio.get_running_loop()
        news = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the caller's loop is closed: nobody is waiting
                loop.call_soon_threadsafe(news.set)

        pending.on_item = wake
        try:
            await asyncio.to_thread(self._send_call, call_id, pending, method, args, kwargs)
            while True:
                news.clear()
                finished = pending.reply.done()
                while not pending.items.empty():
                    yield pending.items.get()
                if finished:
                    pending.reply.result()
                    return
                if not pending.reply.done() and pending.items.empty():
                    await news.wait()
        finally:
            if not pending.reply.done():
                self._abandon(call_id, pending)

    def _send_call(
        self, call_id: int, pending: _PendingCall, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        call = Call(call_id, method, pack((args, kwargs)))
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._target_type.__name__} is closed")
            if self._died is not None:
                raise copy.copy(self._died)  # one error raised often would gather the frames of all its callers
            self._pending[call_id] = pending
        with contextlib.suppress(OSError):  # the receiving thread sees the same end and fails the call
            self._channel.send(call)
        with self._lock:
            pending.is_sent = True
            is_abandoned = pending.is_abandoned
        if is_abandoned:
            self._send_cancel(call_id)

    def _abandon(self, call_id: int, pending: _PendingCall) -> None:
        """Have a call cancelled in the child; one that is being sent is cancelled by its sender."""
        with self._lock:
            pending.is_abandoned = True
            is_sent = pending.is_sent
        if is_sent:
            # In a thread, since a child that does not read would hold up the caller's event loop.
            threading.Thread(target=self._send_cancel, args=(call_id,), name="actor-cancel", daemon=True).start()

    def _send_cancel(self, call_id: int) -> None:
        with contextlib.suppress(OSError):
            self._channel.send(Cancel(call_id))

    def _receive(self) -> None:
        try:
            while True:
                self._handle(self._channel.receive())
        except EOFError:
            self._fail_pending()

    def _handle(self, frame: Any) -> None:
        if isinstance(frame, Reply):
            with self._lock:
                pending = self._pending.pop(frame.call_id, None)
            if pending is not None:
                pending.finish(*_read_outcome(frame.outcome))
        elif isinstance(frame, Item):
            with self._lock:
                pending = self._pending.get(frame.call_id)
            if pending is not None:
                try:
                    pending.add(unpack(frame.value))
                except Exception as err:  # noqa: BLE001 - fails its own call
                    pending.finish(None, _unreadable(err))
        elif isinstance(frame, Event):
            try:
                self._on_event(unpack(frame.value))
            except Exception:
                logger.exception("event handler failed")

    def _fail_pending(self) -> None:
        try:
            code: int | None = self._process.exited.result(timeout=EXIT_CODE_WAIT_S)
        except TimeoutError:
            code = None
        log_path = self._process.log_path
        tail = log_tail(log_path)
        error = TrainerDiedError(
            f"the process of {self._target_type.__name__} (pid {self._process.pid}) is gone: {describe_exit(code)}; "
            f"log: {log_path}" + (f"; its last lines:\n{tail}" if tail else ""),
            exit_code=code,
            log_path=str(log_path),
        )
        with self._lock:
            expected = self._closed
            self._died = error
            on_death = self._on_death
            pending = list(self._pending.values())
            self._pending.clear()
        for call in pending:
            closed = RuntimeError(f"{self._target_type.__name__} was closed before it answered")
            call.finish(None, closed if expected else copy.copy(error))
        if not expected:
            try:
                on_death(error)
            finally:
                self._process.kill_group()
                self._channel.close()

    def close(self) -> None:
        """Ask the child to close the object and end; end it if it does not. Blocks; safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._process.stop_requested = True
        with contextlib.suppress(OSError):
            self._channel.send(Close())
        with contextlib.suppress(TimeoutError):
            self._process.exited.result(timeout=CLOSE_GRACE_S)
        self._process.stop(grace_s=1.0)
        self._channel.close()


def move_to_child_process(
    obj: Any,
    log_file: str | os.PathLike[str] | None = None,
    process_name: str | None = None,
    *,
    env: Mapping[str, str] | None = None,
) -> ActorProxy:
    """Pickle an object into a new child process and return a proxy for it.

    Args:
        obj: Anything that pickles by reference to importable code.
        log_file: The child's output; a temporary file when None.
        process_name: Title shown by `ps`.
        env: Variables set in the child beside the parent's own.

    Returns:
        The proxy, at once; calls wait until the child is up.
    """
    if log_file is None:
        descriptor, name = tempfile.mkstemp(prefix="actor-", suffix=".log")
        os.close(descriptor)
        log_file = name
    return ActorProxy(obj, log_path=Path(log_file), title=process_name, env=env)


def close_proxy(proxy: ActorProxy) -> None:
    """Close what `move_to_child_process` returned. Blocks until the child and all it started are gone."""
    proxy.close()


def _read_outcome(outcome: bytes) -> tuple[Any, BaseException | None]:
    try:
        value, error = unpack(outcome)
    except Exception as err:  # noqa: BLE001 - every call ends with a result or an exception
        return None, _unreadable(err)
    return value, error


def _unreadable(error: Exception) -> RuntimeError:
    return RuntimeError(f"what the child process sent cannot be read in this one: {error!r}")


def _child_environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    environment = {**os.environ, **(extra or {})}
    paths = [path for path in sys.path if path]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return environment
