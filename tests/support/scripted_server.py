"""An inference server that misbehaves on request: `python -m tests.support.scripted_server`.

It takes the command line of `art.vllm.dedicated_server` and answers the routes that this package uses, in a process of
its own or on the event loop of a test. Adapters answer with the logprobs of the probe in their folder, which is read
again at every use, as by an engine that has paged them out: without the folder the server ends. What it does wrong, and
when, is said by `tests.support.scripted_faults`, at its start or over `POST /control`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.support.scripted_faults import Faults, faults_of_start, note_start
from tests.support.scripted_http import Drop, HttpServer, bind, free_port, write_chunk, write_head

ENGINE_DIED = 1


class _Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class ScriptedServer(HttpServer):
    """The server, apart from its process.

    Attributes:
        faults: What it does wrong from now on; to be changed at will.
        adapters: Served name → the folder it answers from; None answers as the base model.
        loads: What became of each request to load an adapter, oldest first.
    """

    def __init__(self, base_model_name: str, faults: Faults | None = None) -> None:
        super().__init__()
        self.faults = faults or Faults()
        self.adapters: dict[str, Path | None] = {}
        self.loads: list[dict[str, Any]] = []
        self.in_flight: Counter[str] = Counter()
        self.tokens = 0
        self._roots: dict[str, str] = {}
        self._name_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._base_model_name = base_model_name
        self._base_logprobs: dict[tuple[int, ...], list[float]] = {}

    def load(self, name: str, path: str) -> None:
        """Serve an adapter, or do with it what the faults say.

        Raises:
            _Refusal: As vLLM refuses it.
        """
        if not name or not path:
            raise _Refusal(400, "Both 'lora_name' and 'lora_path' must be provided.")
        if name in self.adapters:
            raise _Refusal(400, f"The lora adapter '{name}' has already been loaded.")
        folder = Path(path)
        if not (folder / "adapter_config.json").is_file():
            raise _Refusal(404, f"Loading lora {name} failed: No adapter found for {path}")
        self._remember_base(folder)
        if self.faults.unlisted:
            return
        effective: Path | None = folder
        if self.faults.answer_as == "base":
            effective = None
        elif self.faults.answer_as == "previous":
            effective = list(self.adapters.values())[-1]
        self.adapters[name] = effective
        self._roots[name] = path

    async def respond(self, writer: asyncio.StreamWriter, method: str, path: str, body: dict[str, Any]) -> None:
        """Answer one request as vLLM does, or as the faults say."""
        try:
            if self.faults.garbage is not None and path in ("/v1/completions", "/v1/models"):
                await self.write_answer(writer, self.faults.garbage.encode())
                return
            if path in ("/v1/completions", "/v1/chat/completions"):
                await self._generate(writer, path, body)
                return
            answer = await self._answer(method, path, body)
        except _Refusal as err:
            error = {"error": {"message": err.message, "type": "BadRequestError", "code": err.status}}
            await self.write_answer(writer, json.dumps(error).encode(), status=err.status)
            if self.faults.drops_after_errors:
                raise Drop from err
            return
        text = answer if isinstance(answer, str) else json.dumps(answer)
        kind = "text/plain" if isinstance(answer, str) else "application/json"
        await self.write_answer(writer, text.encode(), kind=kind)

    async def _answer(self, method: str, path: str, body: dict[str, Any]) -> Any:
        if path == "/health":
            return ""
        if path == "/metrics":
            return f'vllm:prompt_tokens_total{{model="m"}} {self.tokens}\nvllm:generation_tokens_total 0.0\n'
        if path == "/v1/models":
            await asyncio.sleep(self.faults.list_delay_s)
            return {"data": [{"id": name, "root": self._roots.get(name)} for name in self._names()]}
        if path == "/art/in_flight":
            return dict(+self.in_flight)
        if path == "/art/reset_prefix_cache":
            return {"reset": True}
        if path == "/v1/load_lora_adapter":
            async with self._name_locks[body["lora_name"]]:
                return await self._load(body)
        if path == "/v1/unload_lora_adapter":
            async with self._name_locks[body["lora_name"]]:  # a load that is under way is waited for, as by vLLM
                if self.adapters.pop(body["lora_name"], self) is self:
                    raise _Refusal(404, f"The lora adapter '{body['lora_name']}' cannot be found.")
                return "Success"
        if path == "/control":
            return self._control(body) if method == "POST" else self._report()
        raise _Refusal(404, "Not Found")

    # Adapters -----------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        return [self._base_model_name, *self.adapters]

    async def _load(self, body: dict[str, Any]) -> str:
        name, faults = body["lora_name"], self.faults
        entry = {"name": name, "path": body["lora_path"], "inplace": body.get("load_inplace", False), "status": 200}
        self.loads.append(entry)
        await asyncio.sleep(faults.load_delay_s)
        if faults.exit_on_load is not None:
            _end_process(faults.exit_on_load)
        if faults.drop_before_load > 0:
            faults.drop_before_load -= 1
            entry["status"] = "dropped"
            raise Drop
        try:
            if faults.load_statuses:
                raise _Refusal(faults.load_statuses.pop(0), "scripted failure of a load")
            if faults.load_refusal is not None:
                raise _Refusal(400, faults.load_refusal)
            self.load(name, body["lora_path"])
        except _Refusal as err:
            entry["status"] = err.status
            raise
        if faults.drop_after_load > 0:
            faults.drop_after_load -= 1
            entry["status"] = "applied, then dropped"
            raise Drop
        if faults.exit_after_load is not None:
            _end_process(faults.exit_after_load)
        return f"Success: LoRA adapter '{name}' added successfully."

    def _remember_base(self, folder: Path) -> None:
        probe = _read_probe(folder)
        if probe is not None:
            self._base_logprobs[tuple(probe["token_ids"])] = probe["base_logprobs"]

    # Generation ---------------------------------------------------------------------------------------------

    async def _generate(self, writer: asyncio.StreamWriter, path: str, body: dict[str, Any]) -> None:
        name = str(body.get("model"))
        if name not in self._names():
            raise _Refusal(404, f"The model `{name}` does not exist.")
        self.in_flight[name] += 1
        try:
            await self._meet_faults(body)
            folder = self.adapters.get(name)
            if folder is not None and not (folder / "adapter_config.json").is_file():
                _end_process(ENGINE_DIED)  # the engine dies where it finds no files
            digest = "base" if folder is None else digest_of(folder)
            await asyncio.sleep(self.faults.answer_delay_s)
            self.tokens += 1
            is_chat = path == "/v1/chat/completions"
            if body.get("stream"):
                await self._stream(writer, name, digest, is_chat)
                return
            choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
            choice |= {"message": {"role": "assistant", "content": digest}} if is_chat else {"text": digest}
            choices = [choice]
            if "allowed_token_ids" in body:
                choices = [
                    {**choice, "index": index, "logprobs": {"token_logprobs": [self._score(folder, digest, prompt)]}}
                    for index, prompt in enumerate(body["prompt"])
                ]
            kind = "chat.completion" if is_chat else "text_completion"
            answer = {"id": "scripted", "object": kind, "created": 0, "model": name, "choices": choices}
            encoded = json.dumps(answer).encode()
            if self.faults.break_bodies > 0:
                self.faults.break_bodies -= 1
                write_head(writer, 200, "application/json", f"Content-Length: {len(encoded)}")
                writer.write(encoded[: len(encoded) // 2])
                await writer.drain()
                raise Drop
            await self.write_answer(writer, encoded)
        finally:
            self.in_flight[name] -= 1

    async def _meet_faults(self, body: dict[str, Any]) -> None:
        faults = self.faults
        if faults.exit_on_text is not None and faults.exit_on_text in json.dumps(body):
            _end_process(ENGINE_DIED)
        if faults.exit_on_completion is not None:
            _end_process(faults.exit_on_completion)
        if faults.engine == "silent":
            await asyncio.Event().wait()
        if faults.engine == "failing":
            raise _Refusal(500, "EngineCore encountered an issue.")
        if faults.drop_completions > 0:
            faults.drop_completions -= 1
            raise Drop
        if faults.completion_statuses:
            raise _Refusal(faults.completion_statuses.pop(0), "scripted failure of a completion")

    def _score(self, folder: Path | None, digest: str, prompt: list[int]) -> float:
        """Return the logprob of the probe's next token after a part of the probe."""
        probe = None if folder is None else _read_probe(folder)
        known = {} if probe is None else {tuple(probe["token_ids"]): probe["logprobs"]}
        for token_ids, values in (self._base_logprobs if folder is None else known).items():
            if list(token_ids[: len(prompt)]) == prompt:
                return float(values[len(prompt) - 1])
        return -1.0 - hashlib.sha256(f"{digest} {prompt}".encode()).digest()[0] / 64

    async def _stream(self, writer: asyncio.StreamWriter, name: str, digest: str, is_chat: bool) -> None:
        await self.begin_stream(writer)
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        for number, letter in enumerate(digest):
            if number == len(digest) // 2 and self.faults.break_streams > 0:
                self.faults.break_streams -= 1
                raise Drop
            choice: dict[str, Any] = {"index": 0, "finish_reason": None}
            choice |= {"delta": {"content": letter}} if is_chat else {"text": letter}
            event = {"id": "scripted", "object": kind, "created": 0, "model": name, "choices": [choice]}
            await write_chunk(writer, f"data: {json.dumps(event)}\n\n")
            await asyncio.sleep(self.faults.token_delay_s)
        await write_chunk(writer, "data: [DONE]\n\n")
        await write_chunk(writer, "")

    # Control ------------------------------------------------------------------------------------------------

    def _control(self, orders: dict[str, Any]) -> dict[str, Any]:
        seconds = orders.pop("close_socket_s", None)
        self.faults.change(orders)
        if seconds is not None:
            self.refuse_connections_for(seconds)
        return self._report()

    def _report(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "adapters": {name: str(path) for name, path in self.adapters.items()},
            "requests": dict(self.requests),
            "loads": self.loads,
            "in_flight": dict(+self.in_flight),
            "faults": asdict(self.faults),
        }


def digest_of(folder: Path) -> str:
    """Return what the adapter in a folder answers: eight letters that depend on its files."""
    return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()[:8]


@contextlib.asynccontextmanager
async def scripted_server(base_model_name: str = "base", faults: Faults | None = None) -> AsyncIterator[ScriptedServer]:
    """Run a server on the event loop of the caller, on a free port."""
    server = ScriptedServer(base_model_name, faults)
    await server.start(bind("127.0.0.1", free_port()))
    try:
        yield server
    finally:
        await server.close()


def _read_probe(folder: Path) -> dict[str, Any] | None:
    path = folder / "probe.json"
    return json.loads(path.read_text()) if path.is_file() else None


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _end_process(code: int) -> None:
    _say(f"scripted end: {code}")
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the dedicated server's command line."""
    parser = argparse.ArgumentParser()
    for option in ("--model", "--host", "--served-model-name", "--engine-args-json", "--server-args-json"):
        parser.add_argument(option)
    for option in ("--port", "--listen-fd", "--cpu-threads"):
        parser.add_argument(option, type=int)
    for option in ("--lora-path", "--lora-name", "--cuda-visible-devices"):
        parser.add_argument(option)
    parser.add_argument("--lora-modules-json", default="[]")
    return parser


async def _serve(options: argparse.Namespace, faults: Faults) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, (lambda: None) if faults.ignore_sigterm else stop.set)
    server = ScriptedServer(options.served_model_name or options.model, faults)
    for module in json.loads(options.lora_modules_json):
        server.load(module["name"], module["path"])
    await asyncio.sleep(faults.start_delay_s)
    inherited = options.listen_fd is not None
    await server.start(socket.socket(fileno=options.listen_fd) if inherited else bind(options.host, options.port))
    _say(f"serving: pid={os.getpid()}")
    await stop.wait()
    await server.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until asked to end."""
    faults = faults_of_start(note_start())
    _say(f"starting: pid={os.getpid()}")
    if faults.grandchild:
        # Ignores being asked to end, as an engine that hangs does.
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
        _say(f"grandchild: {subprocess.Popen([sys.executable, '-c', code]).pid}")
    if faults.start_exit_code is not None:
        _say("ValueError: scripted failure of a start")
        _end_process(faults.start_exit_code)
    asyncio.run(_serve(build_parser().parse_args(argv), faults))
    return 0


if __name__ == "__main__":
    sys.exit(main())
