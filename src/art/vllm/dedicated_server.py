"""The inference server of dedicated mode: `python -m art.vllm.dedicated_server --model … --port …`.

Serves vLLM's OpenAI API with runtime loading of adapters, and two routes of our own: `/art/in_flight` and
`/art/reset_prefix_cache`. It accepts no connection before its adapters are loaded, and ends with code 1 when its
engine dies. SIGTERM and SIGINT end it at once while it starts; later it closes its connections first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

logger = logging.getLogger(__name__)

ENGINE_DIED = 1
ENGINE_POLL_S = 0.5
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def build_parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    parser = argparse.ArgumentParser(prog="python -m art.vllm.dedicated_server", description=__doc__)
    parser.add_argument("--model", required=True, help="Hub id or path of the base model")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0 takes a free one")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument(
        "--listen-fd", type=int, default=None, help="inherited listening socket, in place of host and port"
    )
    parser.add_argument("--cuda-visible-devices", default=None, help="GPUs of the server, such as 1")
    parser.add_argument("--lora-path", default=None, help="folder of one adapter to start with")
    parser.add_argument("--lora-name", default=None, help="name of the adapter in --lora-path")
    parser.add_argument("--lora-modules-json", default="[]", help='adapters to start with: [{"name": …, "path": …}, …]')
    parser.add_argument("--served-model-name", default=None, help="name of the base model; the model itself by default")
    parser.add_argument("--engine-args-json", default="{}", help="arguments of vLLM's engine")
    parser.add_argument("--server-args-json", default="{}", help="arguments of vLLM's server")
    parser.add_argument("--cpu-threads", type=int, default=1, help="threads of an engine on a CPU")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until asked to end; return the exit code."""
    options = build_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if options.cuda_visible_devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = options.cuda_visible_devices
    os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    return asyncio.run(_serve(options))


async def _serve(options: argparse.Namespace) -> int:
    import torch

    from art.inference.process_server import open_listener
    from art.vllm.compat import load_vllm_api
    from art.vllm.engine import EnginePlan, engine_environment, parse_plan
    from art.vllm.engine_start import start_guarded_engine
    from art.vllm.server import OpenAIServer

    for sig in _ENDING_SIGNALS:
        signal.signal(sig, signal.SIG_DFL)  # an engine that is starting cannot be interrupted; guards end what it began
    listener = (
        open_listener(options.host, options.port)
        if options.listen_fd is None
        else socket.socket(fileno=options.listen_fd)
    )
    plan = EnginePlan(
        engine_args=_engine_args(options),
        server_args={**json.loads(options.server_args_json), "lora_modules": _lora_modules(options)},
        has_cuda=torch.cuda.is_available(),
        cpu_threads=options.cpu_threads,
    )
    api = load_vllm_api()
    with engine_environment(plan):
        args = parse_plan(api, plan, host=options.host, port=listener.getsockname()[1])
        started = await start_guarded_engine(api, args)
        try:
            server = await OpenAIServer.start(api, started.client, args, listener, with_admin_routes=True)
        except BaseException:
            started.shut_down()
            raise
    stop = asyncio.Event()
    for sig in _ENDING_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(sig, stop.set)
    logger.info("serving: url=http://%s:%d/v1", server.host, server.port)
    try:
        return await _watch(started.client, stop)
    finally:
        await server.close()
        await asyncio.to_thread(started.shut_down)


def _engine_args(options: argparse.Namespace) -> dict[str, Any]:
    engine_args: dict[str, Any] = json.loads(options.engine_args_json)
    engine_args.pop("enable_sleep_mode", None)
    engine_args["model"] = options.model
    engine_args["served_model_name"] = options.served_model_name or options.model
    engine_args["enable_lora"] = True
    engine_args.setdefault("max_loras", 2)
    return engine_args


def _lora_modules(options: argparse.Namespace) -> list[str]:
    modules = list(json.loads(options.lora_modules_json))
    if options.lora_path is not None:
        modules.append({"name": options.lora_name or options.lora_path, "path": options.lora_path})
    return [json.dumps(module) for module in modules]


async def _watch(engine: Any, stop: asyncio.Event) -> int:
    while not stop.is_set():
        if engine.errored:
            logger.error("the engine died: %s", getattr(engine, "dead_error", "no reason given"))
            return ENGINE_DIED
        try:
            await asyncio.wait_for(stop.wait(), ENGINE_POLL_S)
        except TimeoutError:
            continue
    return 0


if __name__ == "__main__":
    sys.exit(main())
