"""Start an inference server as a child process and wait until it serves."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import sys
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

from art.errors import ConfigurationError, ServerDiedError, ServerNotReadyError, ServerStartError
from art.inference.admin_client import AdminClient
from art.inference.runtime import AdapterFiles
from art.processes import ChildProcess, describe_exit, log_tail

SERVER_MODULE = "art.vllm.dedicated_server"
READY_POLL_S = 0.2
READY_REQUEST_TIMEOUT_S = 5.0

T = TypeVar("T")


@dataclass(frozen=True)
class ServerSpec:
    """What is started.

    Attributes:
        model: Hub id or path of the base model.
        engine_args: Arguments of vLLM's engine.
        server_args: Arguments of vLLM's server, without host, port and adapters.
        host: Address to listen on.
        port: 0 takes a free one.
        log_path: Where each start's output goes; its folder must exist and the file be new for each start.
        start_timeout_s: How long a start may take.
        cuda_visible_devices: The server's GPUs; None leaves the variable as it is.
        cpu_threads: Threads of an engine on a CPU.
        module: What `python -m` runs.
        env: Variables set beside the parent's own.
    """

    model: str
    engine_args: Mapping[str, Any]
    server_args: Mapping[str, Any]
    host: str
    port: int
    log_path: Path
    start_timeout_s: float
    cuda_visible_devices: str | None = None
    cpu_threads: int = 1
    module: str = SERVER_MODULE
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def served_model_name(self) -> str:
        """Name under which the base model is served."""
        return str(self.engine_args.get("served_model_name") or self.model)

    @property
    def api_key(self) -> str:
        """The key that the server asks for."""
        return str(self.server_args.get("api_key") or "default")

    def command(self, adapters: Sequence[AdapterFiles], listener: socket.socket) -> list[str]:
        """Return the command line for a start with these adapters on this socket."""
        modules = [{"name": adapter.name, "path": str(adapter.path)} for adapter in adapters]
        argv = [
            *(sys.executable, "-m", self.module),
            *("--model", self.model, "--served-model-name", self.served_model_name),
            *("--host", self.host, "--port", str(listener.getsockname()[1]), "--listen-fd", str(listener.fileno())),
            *("--engine-args-json", json.dumps(dict(self.engine_args))),
            *("--server-args-json", json.dumps(dict(self.server_args))),
            *("--lora-modules-json", json.dumps(modules)),
            *("--cpu-threads", str(self.cpu_threads)),
        ]
        if self.cuda_visible_devices is not None:
            argv += ["--cuda-visible-devices", self.cuda_visible_devices]
        return argv


def open_listener(host: str, port: int) -> socket.socket:
    """Bind the address once, for all starts of a server.

    The socket stays open across restarts: no other program can take the port meanwhile, and connections made while the
    server is away wait instead of being refused.

    Raises:
        ConfigurationError: The address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Inherited by its connections. asyncio sets it only on sockets made for TCP by name, which those accepted here are
    # not: each answer would wait 40 ms between head and body for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as err:
        listener.close()
        is_taken = isinstance(err, OSError) and err.errno == errno.EADDRINUSE
        hint = "another program uses it; choose another port, or none" if is_taken else "choose another host or port"
        raise ConfigurationError(f"the inference server cannot listen on {host}:{port}: {err}; {hint}") from err
    return listener


def connectable_url(host: str, port: int) -> str:
    """Return the `/v1` address that a client on this machine can use for a server bound to `host`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def start_server(spec: ServerSpec, adapters: Sequence[AdapterFiles], listener: socket.socket) -> ChildProcess:
    """Start the child; return at once."""
    environment = {**os.environ, **spec.env, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
    return ChildProcess.start(
        spec.command(adapters, listener), env=environment, log_path=spec.log_path, pass_fds=[listener.fileno()]
    )


async def wait_until_ready(child: ChildProcess, client: AdminClient, spec: ServerSpec, names: set[str]) -> None:
    """Wait until the server lists every name.

    Raises:
        ServerStartError: The child ended; the error names the root cause found in its log.
        ServerNotReadyError: The limit passed.
    """
    started = time.monotonic()
    deadline = started + spec.start_timeout_s
    seen = "nothing yet"
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            listed = await while_running(child, client.list_models(timeout_s=min(READY_REQUEST_TIMEOUT_S, left_s)))
            if names <= listed:
                return
            seen = f"a model list without {sorted(names - listed)}"
            await while_running(child, asyncio.sleep(READY_POLL_S))
        except ServerDiedError:
            raise _start_error(child) from None
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as err:  # the latter: no answer of a vLLM
            seen = f"{type(err).__name__} {err}".strip()
            await exits_within(child, READY_POLL_S)
    raise ServerNotReadyError(
        f"the inference server at {client.base_url} was not ready after {spec.start_timeout_s:g} s "
        f"(ART_DEDICATED_VLLM_TIMEOUT or serving['server_start_timeout_s']); last seen: {seen}; {child.describe()}; "
        f"log: {child.log_path}; its last lines:\n{log_tail(child.log_path)}",
        waited_s=time.monotonic() - started,
        url=client.base_url,
        log_path=str(child.log_path),
    )


async def while_running(child: ChildProcess, work: Awaitable[T]) -> T:
    """Wait for something that a server is to answer, but not longer than the server lives.

    Its address stays open when it is gone, so that connections wait for the next one: they would wait for nothing.

    Raises:
        ServerDiedError: It ended first.
    """
    task = asyncio.ensure_future(work)
    waited_for: set[asyncio.Future[Any]] = {task, child.exited_here()}
    try:
        await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    raise ServerDiedError(
        f"the inference server ended: {child.describe()}; log: {child.log_path}",
        exit_code=child.exit_code,
        log_path=str(child.log_path),
    )


async def exits_within(child: ChildProcess, seconds: float) -> bool:
    """Wait for a child's end, at most so long; return whether it has come."""
    await asyncio.wait({child.exited_here()}, timeout=seconds)
    return not child.is_running


def _start_error(child: ChildProcess) -> ServerStartError:
    tail = log_tail(child.log_path, lines=30)
    cause = root_cause(log_tail(child.log_path, lines=400, max_bytes=262_144))
    return ServerStartError(
        f"the inference server did not start: pid {child.pid} {describe_exit(child.exit_code)}"
        f"{f'; cause: {cause}' if cause else ''}; log: {child.log_path}; its last lines:\n{tail}",
        command=" ".join(child.argv),
        exit_code=child.exit_code,
        log_path=str(child.log_path),
        log_tail=tail,
    )


def root_cause(log: str) -> str:
    """Return the first line of a log that names an exception: what follows is mostly its consequences."""
    for line in log.splitlines():
        text = line.split("] ", 1)[-1].strip() if line.startswith("(") else line.strip()
        name, colon, _ = text.partition(":")
        if colon and " " not in name and name.rpartition(".")[2].endswith(("Error", "Exception")):
            return text
    return ""
