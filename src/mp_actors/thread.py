"""Host an object in a thread with an event loop of its own, called like one in a child process."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import queue
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from mp_actors.dispatch import close_object, run_method


class ThreadActor:
    """Stands for an object whose coroutines run in a thread of their own; use `move_to_thread` to make one.

    The caller's event loop never runs the object's code, and several loops in one process may call it.
    """

    def __init__(self, target: Any, *, name: str) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._closed = False
        self._lock = threading.Lock()
        self._on_event: Callable[[Any], None] = lambda value: None
        if hasattr(target, "on_event"):
            target.on_event = lambda value: self._on_event(value)
        self._thread.start()

    def on_event(self, handler: Callable[[Any], None]) -> None:
        """Have events of the object handed to `handler`, in the thread that raises them."""
        self._on_event = handler

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        function = getattr(type(self._target), name, None)
        if not callable(function):
            return getattr(self._target, name)
        if inspect.isasyncgenfunction(function):
            return lambda *args, **kwargs: self._iterate(name, args, kwargs)
        return lambda *args, **kwargs: self._call(name, args, kwargs, lambda value: None)

    async def ready(self) -> None:
        """Return at once: the object is here already."""

    async def _call(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], emit: Callable[[Any], None]
    ) -> Any:
        with self._lock:  # a call that is let in is known to the loop before `close` looks for calls
            if self._closed:
                raise RuntimeError(f"{type(self._target).__name__} is closed")
            future = asyncio.run_coroutine_threadsafe(run_method(self._target, method, args, kwargs, emit), self._loop)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            # It must not look as if the caller had been cancelled.
            raise RuntimeError(f"{method} was cut off: {type(self._target).__name__} is being closed") from None

    async def _iterate(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        loop = asyncio.get_running_loop()
        news = asyncio.Event()

        def emit(value: Any) -> None:
            items.put(value)
            with contextlib.suppress(RuntimeError):  # the caller's loop is closed: nobody is waiting
                loop.call_soon_threadsafe(news.set)

        call = asyncio.ensure_future(self._call(method, args, kwargs, emit))
        call.add_done_callback(lambda _: news.set())
        try:
            while True:
                news.clear()
                finished = call.done()
                while not items.empty():
                    yield items.get()
                if finished:
                    call.result()
                    return
                if not call.done() and items.empty():
                    await news.wait()
        finally:
            if not call.done():
                call.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await call

    def close(self) -> None:
        """Close the object and end the thread. Blocks; safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _shut_down(self) -> None:
        current = asyncio.current_task()
        calls = [
            task
            for task in asyncio.all_tasks()
            if task is not current and getattr(task.get_coro(), "__name__", "") == "run_method"
        ]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await close_object(self._target)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())


def move_to_thread(obj: Any, name: str = "actor") -> ThreadActor:
    """Host an object in a thread with an event loop of its own and return a stand-in for it."""
    return ThreadActor(obj, name=name)
