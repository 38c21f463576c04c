"""Show the responses of httpx clients to whoever asks, for as long as they ask.

httpx offers hooks for one client only, and the client belongs to other code (OpenAI's, litellm's, a user's). So
`send` of the client classes is wrapped while at least one observer is active, and put back afterwards. OpenAI's
client uses the package httpx2 in newer versions, httpx in older ones; both are covered.

An observer sees the requests of its own task and of the tasks and threads that inherit its context variables.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from types import ModuleType, TracebackType
from typing import Any

import httpx

logger = logging.getLogger(__name__)


class ResponseObserver:
    """Calls back with each wanted response while the block runs; the innermost block of a context wins.

    A streamed response is shown when it is closed, or when the block ends with what has come until then.
    """

    def __init__(
        self, is_wanted: Callable[[httpx.Request], bool], on_response: Callable[[httpx.Response], None]
    ) -> None:
        """Keep the callbacks.

        Args:
            is_wanted: Whether the response to a request is to be shown; called once the response has begun.
            on_response: Gets the response with its whole body. What it raises is logged and goes no further.
        """
        self._is_wanted = is_wanted
        self._on_response = on_response
        self._is_active = False
        self._open_streams: dict[_Recording, None] = {}  # in the order of their start
        self._lock = threading.RLock()
        self._token: contextvars.Token[ResponseObserver | None] | None = None

    def __enter__(self) -> ResponseObserver:
        _send_hook.acquire()
        self._is_active = True
        self._token = _observer_var.set(self)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            _observer_var.reset(self._token)
            self._token = None
        for recording in list(self._open_streams):
            recording.finish()
        self._is_active = False
        _send_hook.release()

    def see(self, response: httpx.Response, library: ModuleType) -> None:
        """Take note of a response that a client is about to hand out."""
        try:
            if not self._is_active or not self._is_wanted(response.request):
                return
            if response.is_closed:
                self._show(response)
            else:
                recording = _Recording(response, self)
                self._open_streams[recording] = None
                response.stream = _tee(library, response.stream, recording)
        except Exception:
            logger.debug("a response could not be observed", exc_info=True)

    def end(self, recording: _Recording, *, is_whole: bool) -> None:
        """Show a streamed response that has ended, unless it broke off."""
        is_news = self._open_streams.pop(recording, self) is None
        if not (is_news and is_whole and self._is_active):
            return
        try:
            self._show(recording.response_with_body())
        except Exception:
            logger.debug("a streamed response could not be observed", exc_info=True)

    def _show(self, response: httpx.Response) -> None:
        with self._lock:
            self._on_response(response)


class _Recording:
    """The bytes of one streamed response."""

    def __init__(self, response: httpx.Response, observer: ResponseObserver) -> None:
        self._response = response
        self._observer = observer
        self._chunks: list[bytes] = []

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)

    def finish(self) -> None:
        self._observer.end(self, is_whole=True)

    def discard(self) -> None:
        self._observer.end(self, is_whole=False)

    def response_with_body(self) -> httpx.Response:
        """Make a response that has been read: its content is what came, decompressed."""
        return type(self._response)(
            self._response.status_code,
            headers=self._response.headers,
            content=b"".join(self._chunks),
            request=self._response.request,
        )


class _Tee:
    """Passes a stream on and records it; attributes other than those of a stream are the inner one's."""

    def __init__(self, inner: Any, recording: _Recording) -> None:
        self._inner = inner
        self._recording = recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _AsyncTee(_Tee):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = self._inner.__aiter__()
        try:
            async for chunk in chunks:
                self._recording.add(chunk)
                yield chunk
        except GeneratorExit:  # the reader has had enough
            raise
        except BaseException:
            self._recording.discard()
            raise
        finally:
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._recording.finish()


class _SyncTee(_Tee):
    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._inner:
                self._recording.add(chunk)
                yield chunk
        except GeneratorExit:  # the reader has had enough
            raise
        except BaseException:
            self._recording.discard()
            raise

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._recording.finish()


def _tee(library: ModuleType, stream: Any, recording: _Recording) -> Any:
    kind, base = (
        (_AsyncTee, library.AsyncByteStream)
        if isinstance(stream, library.AsyncByteStream)
        else (_SyncTee, library.SyncByteStream)
    )
    observed = type("ObservedStream", (kind, base), {})  # httpx accepts only streams of its own classes
    return observed(stream, recording)


class _SendHook:
    """Wraps `send` of the client classes while it has users.

    When other code has wrapped the method on top of ours in the meantime, ours stays beneath, without effect.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._wrapped: dict[type[Any], tuple[Any, Any]] = {}

    def acquire(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                for library in [httpx, *filter(None, [sys.modules.get("httpx2")])]:
                    self._wrap(library, library.AsyncClient, _async_send)
                    self._wrap(library, library.Client, _sync_send)

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for client_class, (original, wrapper) in list(self._wrapped.items()):
                    if client_class.send is wrapper:
                        client_class.send = original
                        del self._wrapped[client_class]

    def _wrap(self, library: ModuleType, client_class: Any, make_wrapper: Callable[[Any, ModuleType], Any]) -> None:
        current = client_class.send
        if client_class in self._wrapped and current is not self._wrapped[client_class][0]:
            return  # ours is still beneath what other code put there
        wrapper = make_wrapper(current, library)
        self._wrapped[client_class] = (current, wrapper)
        client_class.send = wrapper


def _async_send(original: Any, library: ModuleType) -> Any:
    @functools.wraps(original)
    async def send(*args: Any, **kwargs: Any) -> Any:
        response = await original(*args, **kwargs)
        observer = _observer_var.get()
        if observer is not None:
            observer.see(response, library)
        return response

    return send


def _sync_send(original: Any, library: ModuleType) -> Any:
    @functools.wraps(original)
    def send(*args: Any, **kwargs: Any) -> Any:
        response = original(*args, **kwargs)
        observer = _observer_var.get()
        if observer is not None:
            observer.see(response, library)
        return response

    return send


_observer_var: contextvars.ContextVar[ResponseObserver | None] = contextvars.ContextVar(
    "response_observer", default=None
)
_send_hook = _SendHook()
