"""vLLM's OpenAI-compatible HTTP layer around an engine that we hold.

`_openai_serving_models` is the object in which that layer keeps the adapters it answers for. It is set here from the
app that we built ourselves, never captured by patching a constructor: a layer that moved or changed is an error at
start, not an adapter that silently stays unserved.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from typing import Any

import uvicorn

from art.errors import IncompatibleDependencyError, ServerStartError
from art.vllm.admin_routes import AdminRoutes
from art.vllm.compat import SUPPORTED, VllmApi, check_serving_models
from art.vllm.middleware import Application, RolloutMiddleware
from art.vllm.root_logging import root_logging_kept
from art.vllm.serving_registry import newest_name

_openai_serving_models: Any = None

SHUTDOWN_GRACE_S = 5  # for requests that are being answered when the server is closed


class OpenAIServer:
    """The HTTP server of one engine.

    Attributes:
        host: Address to connect to; loopback when the server listens on all interfaces.
        port: Its port.
        serving_models: vLLM's registry of served names.
        in_flight: Model name → requests being answered.
    """

    def __init__(
        self, app: Any, serving_models: Any, listener: socket.socket, in_flight: Counter[str], args: Namespace
    ) -> None:
        self.serving_models = serving_models
        self.in_flight = in_flight
        self.host, self.port = connectable_address(listener)
        self._listener = listener
        self._server = _EmbeddedServer(
            uvicorn.Config(
                app,
                log_level=args.uvicorn_log_level,
                access_log=False,
                timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
                ssl_keyfile=args.ssl_keyfile,
                ssl_certfile=args.ssl_certfile,
                ssl_ca_certs=args.ssl_ca_certs,
            )
        )
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        api: VllmApi,
        engine: Any,
        args: Namespace,
        listener: socket.socket,
        *,
        with_admin_routes: bool = False,
    ) -> OpenAIServer:
        """Build vLLM's app around an engine and serve it on a socket that is bound already.

        Args:
            api: The installed vLLM.
            engine: Its engine client.
            args: Parsed arguments of engine and server.
            listener: Where to accept connections; none is accepted before static adapters are loaded.
            with_admin_routes: Also answer our own routes, for an owner in another process.

        Raises:
            IncompatibleDependencyError: The installed vLLM keeps its served names elsewhere.
            ServerStartError: The server ended before it accepted requests.
        """
        global _openai_serving_models
        tasks = await engine.get_supported_tasks()
        in_flight: Counter[str] = Counter()
        with root_logging_kept():
            app = api.build_app(args, tasks, engine.model_config)
            await api.init_app_state(engine, app.state, args, tasks)
        serving_models = getattr(app.state, "openai_serving_models", None)
        if serving_models is None:
            raise IncompatibleDependencyError(
                "vllm", found_version=api.version, wanted=SUPPORTED, missing="`app.state.openai_serving_models`"
            )
        check_serving_models(serving_models, api.version)
        # Around the app, not inside it: vLLM hands over an app whose middleware can no longer be added to.
        on_cpu = engine.vllm_config.device_config.device_type == "cpu"
        outer: Application = RolloutMiddleware(
            app, in_flight, on_cpu=on_cpu, resolve_name=functools.partial(newest_name, serving_models)
        )
        if with_admin_routes:
            outer = AdminRoutes(outer, engine, in_flight, [key for key in args.api_key or () if key])
        server = cls(outer, serving_models, listener, in_flight, args)
        app.state.server = server._server  # vLLM's error handlers look for it there
        await server._serve()
        _openai_serving_models = serving_models
        return server

    async def close(self) -> None:
        """Stop accepting, give running requests a moment, close the port."""
        global _openai_serving_models
        if _openai_serving_models is self.serving_models:
            _openai_serving_models = None
        self._server.should_exit = True
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(self._task, return_exceptions=True)
        self._listener.close()

    async def _serve(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]), name="openai-server")
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise ServerStartError(f"the HTTP server on {self.host}:{self.port} ended before it accepted requests")
            await asyncio.sleep(0.01)


class _EmbeddedServer(uvicorn.Server):
    """Leaves the signal handlers of the program that it runs in alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def connectable_address(listener: socket.socket) -> tuple[str, int]:
    """Return host and port that a client on this machine can connect to."""
    host, port = listener.getsockname()[:2]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port  # noqa: S104 - compared, not bound
