"""Start an engine beside a running event loop, and end it so that nothing of it is left."""

from __future__ import annotations

import asyncio
import multiprocessing
from argparse import Namespace
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

from art.vllm.compat import VllmApi
from art.vllm.engine import start_engine
from art.vllm.lora_slots import keep_slots
from art.vllm.orphan_guard import OrphanGuard

POLL_S = 0.1  # how soon a process that an engine starts is guarded


@dataclass(frozen=True)
class StartedEngine:
    """An engine and its processes.

    Attributes:
        client: vLLM's engine client.
        processes: The engine's own processes, which `client` talks to.
        guards: End these processes when this one is gone.
    """

    client: Any
    processes: list[BaseProcess]
    guards: list[OrphanGuard]

    def shut_down(self) -> None:
        """End the engine. Blocks for seconds; safe to call when it has died."""
        try:
            self.client.shutdown()
        finally:
            for guard in self.guards:
                guard.close()


async def start_guarded_engine(api: VllmApi, args: Namespace) -> StartedEngine:
    """Start an engine in a thread; one that comes up after the caller has given up is ended at once.

    Call inside `engine_environment`.
    """
    known = set(multiprocessing.active_children())
    processes: list[BaseProcess] = []
    guards: list[OrphanGuard] = []
    starting = asyncio.get_running_loop().run_in_executor(None, start_engine, api, args)
    try:
        while not starting.done():
            await asyncio.wait({starting}, timeout=POLL_S)
            for process in multiprocessing.active_children():
                if process not in known and process.name.startswith("EngineCore") and process.pid is not None:
                    known.add(process)
                    processes.append(process)
                    guards.append(OrphanGuard(process.pid))
    except asyncio.CancelledError:
        starting.add_done_callback(lambda late: _end_late_engine(late, guards))
        raise
    try:
        started = StartedEngine(starting.result(), processes, guards)
    except BaseException:
        _close_all(guards)
        raise
    try:
        await keep_slots(started.client, api.version)
    except BaseException:
        await asyncio.to_thread(started.shut_down)
        raise
    return started


def _end_late_engine(starting: asyncio.Future[Any], guards: list[OrphanGuard]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().shutdown()
    _close_all(guards)


def _close_all(guards: list[OrphanGuard]) -> None:
    for guard in guards:
        guard.close()
