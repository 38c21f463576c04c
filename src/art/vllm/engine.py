"""Turn configuration into vLLM's arguments and start an engine without leaving marks on the host process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import tempfile
import threading
import types
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from art.errors import ConfigurationError
from art.vllm.cli_args import option_strings, render_cli_args
from art.vllm.compat import VllmApi
from art.vllm.lora_slots import EXTENSION

logger = logging.getLogger(__name__)

# Set for the engine's start only, where the user has set nothing. Without the first, vLLM has no routes for adapters;
# the others make an engine on a CPU up to ten times faster and its start half a minute shorter.
_ENVIRONMENT = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_NO_USAGE_STATS": "1"}
_CPU_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
_SOCKET_FOLDER_PREFIX = "art-sockets-"
_SOCKET_NAME_LENGTH = len(f"/{_SOCKET_FOLDER_PREFIX}12345678/123e4567-e89b-12d3-a456-426614174000")
_LONGEST_SOCKET_PATH = 107
TURN_POLL_S = 0.05
_starting = threading.Lock()
# Arguments that older releases took and scripts still pass; logging of requests belongs to the server's owner.
_DROPPED = frozenset({"enable_log_requests", "disable_log_requests"})


@dataclass(frozen=True)
class EnginePlan:
    """Everything that an engine is started with.

    Attributes:
        engine_args: Arguments of the engine, as vLLM names them.
        server_args: Arguments of the HTTP server, without host, port and adapters.
        has_cuda: Whether the engine runs on a GPU.
        cpu_threads: Threads of an engine on a CPU.
    """

    engine_args: Mapping[str, object]
    server_args: Mapping[str, object]
    has_cuda: bool
    cpu_threads: int = 1


def plan_engine(
    *,
    engine_args: Mapping[str, object],
    server_config: Mapping[str, Any],
    overrides: Mapping[str, object],
    max_live_adapters: int,
    has_cuda: bool,
    cpu_threads: int,
) -> EnginePlan:
    """Combine the model's and the server's configuration.

    Args:
        engine_args: Completed engine arguments of the model.
        server_config: Completed `OpenAIServerConfig`; its engine arguments give way to the model's.
        overrides: Engine arguments that the caller put into the server's configuration; they win.
        max_live_adapters: Steps that stay addressable; the engine has a slot for each, and for one more.
        has_cuda: Whether the engine runs on a GPU.
        cpu_threads: Threads of an engine on a CPU.

    Raises:
        ConfigurationError: The engine cannot hold as many adapters as must stay addressable.
    """
    engine: dict[str, Any] = {**dict(server_config.get("engine_args") or {}), **engine_args, **overrides}
    engine["enable_lora"] = True
    # A batch may mix as many adapters as there are slots: with one for each live step none of them is paged in and out.
    engine.setdefault("max_loras", max_live_adapters + 1)
    engine.setdefault("max_cpu_loras", max(int(engine["max_loras"]), max_live_adapters) + 2)
    if int(engine["max_cpu_loras"]) <= max_live_adapters:
        raise ConfigurationError(
            f"engine_args['max_cpu_loras']={engine['max_cpu_loras']} must be above serving['max_live_adapters']="
            f"{max_live_adapters}: a new adapter is loaded before the oldest one goes"
        )
    server = {
        key: value
        for key, value in dict(server_config.get("server_args") or {}).items()
        if key not in ("host", "port", "lora_modules")
    }
    return EnginePlan(
        engine_args={key: value for key, value in engine.items() if key not in _DROPPED},
        server_args=server,
        has_cuda=has_cuda,
        cpu_threads=cpu_threads,
    )


def parse_plan(api: VllmApi, plan: EnginePlan, *, host: str, port: int) -> Namespace:
    """Have vLLM's own parser read the plan, so that its defaults and checks apply.

    Raises:
        ConfigurationError: vLLM refuses an argument.
    """
    parser = api.make_arg_parser(api.FlexibleArgumentParser())
    known = option_strings(parser)
    engine_args = {"worker_extension_cls": EXTENSION, **plan.engine_args}
    argv = render_cli_args({**engine_args, **plan.server_args, "host": host, "port": port}, known_options=known)
    try:
        args: Namespace = parser.parse_args(argv)
        api.validate_parsed_serve_args(args)
    except SystemExit as err:
        raise ConfigurationError(
            f"vLLM {api.version} refuses its arguments {argv}; its reason is in the log above"
        ) from err
    except (TypeError, ValueError) as err:
        raise ConfigurationError(f"vLLM {api.version} refuses its arguments {argv}: {err}") from err
    return args


def start_engine(api: VllmApi, args: Namespace) -> Any:
    """Start an engine. Blocks for 15 to 60 s. Call inside `engine_environment`."""
    engine_args = api.AsyncEngineArgs.from_cli_args(args)
    with without_main_module():
        return api.AsyncLLM.from_engine_args(engine_args)


@contextlib.contextmanager
def engine_environment(plan: EnginePlan) -> Iterator[None]:
    """Set what an engine needs at its start, and put the environment back as it was.

    vLLM's configuration code writes variables of its own (such as LD_PRELOAD and LOCAL_WORLD_SIZE) into the host
    process; left there, they would reach the trainer and other children.
    """
    before = dict(os.environ)
    wanted = dict(_ENVIRONMENT)
    if not plan.has_cuda:
        wanted |= _CPU_ENVIRONMENT | {"OMP_NUM_THREADS": str(plan.cpu_threads)}
    with _socket_folder() as folder:
        for name, value in {**wanted, "VLLM_RPC_BASE_PATH": folder}.items():
            os.environ.setdefault(name, value)
        try:
            yield
        finally:
            for name in set(os.environ) - set(before):
                del os.environ[name]
            for name, value in before.items():
                if os.environ.get(name) != value:
                    os.environ[name] = value


@contextlib.asynccontextmanager
async def engine_turn() -> AsyncIterator[None]:
    """Wait until no other engine is being started in this process: a start borrows its environment and main module."""
    while not _starting.acquire(blocking=False):  # noqa: ASYNC110 - waiters may belong to several event loops
        await asyncio.sleep(TURN_POLL_S)
    try:
        yield
    finally:
        _starting.release()


@contextlib.contextmanager
def _socket_folder() -> Iterator[str]:
    """Give the engine's processes a folder for the sockets over which they meet.

    It goes when all have connected, since vLLM leaves its sockets lying about. Its path is short: longer ones than 107
    characters cannot be bound, and temporary folders may be deep.
    """
    deep = len(tempfile.gettempdir()) + _SOCKET_NAME_LENGTH > _LONGEST_SOCKET_PATH
    with tempfile.TemporaryDirectory(
        prefix=_SOCKET_FOLDER_PREFIX, dir="/tmp" if deep else None, ignore_cleanup_errors=True
    ) as folder:
        yield folder


@contextlib.contextmanager
def without_main_module() -> Iterator[None]:
    """Keep spawned children from importing the caller's script again.

    The engine core is always a spawned process. `multiprocessing` would run the user's script in it a second time,
    which fails for scripts without a `__main__` guard and for those read from standard input; the core needs nothing
    of it.
    """
    real = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = real


def known_engine_args(api: VllmApi) -> frozenset[str]:
    """Return the names of all engine arguments of the installed vLLM."""
    return frozenset(field.name for field in fields(api.AsyncEngineArgs))
