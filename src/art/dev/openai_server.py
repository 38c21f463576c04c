"""The inference server's configuration, as scripts write it, and its defaults filled in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, TypedDict, cast

from art.dev.engine import EngineArgs
from art.dev.settings import ENGINE_DEFAULTS, SERVER_DEFAULTS
from art.errors import ConfigurationError


class ServerArgs(TypedDict, total=False):
    """Arguments of vLLM's OpenAI-compatible server. `allowed_*` are JSON lists, as text."""

    allow_credentials: bool
    allowed_headers: str
    allowed_methods: str
    allowed_origins: str
    api_key: str | None
    chat_template: str | None
    chat_template_content_format: Literal["auto", "string", "openai"]
    disable_fastapi_docs: bool
    disable_frontend_multiprocessing: bool
    enable_auto_tool_choice: bool
    enable_prompt_tokens_details: bool
    enable_reasoning: bool
    enable_request_id_headers: bool
    enable_server_load_tracking: bool
    enable_ssl_refresh: bool
    host: str | None
    lora_modules: list[str] | None
    max_log_len: int | None
    middleware: list[str]
    port: int
    prompt_adapters: list[str] | None
    reasoning_parser: str | None
    response_role: str | None
    return_tokens_as_token_ids: bool
    root_path: str | None
    ssl_ca_certs: str | None
    ssl_cert_reqs: int
    ssl_certfile: str | None
    ssl_keyfile: str | None
    tool_call_parser: str | None
    tool_parser_plugin: str
    uvicorn_log_level: Literal["debug", "info", "warning", "error", "critical", "trace"]


class OpenAIServerConfig(TypedDict, total=False):
    """How the server is started. `engine_args` feed the server's parser; they change no engine that already exists."""

    log_file: str
    server_args: ServerArgs
    engine_args: EngineArgs


def get_openai_server_config(
    model_name: str,
    base_model: str,
    log_file: str,
    lora_path: str | None = None,
    config: OpenAIServerConfig | None = None,
) -> OpenAIServerConfig:
    """Complete the server's configuration.

    Args:
        model_name: Our name of the model; its adapter is served as `model_name@step`.
        base_model: Name under which the base model itself is served when there is an adapter.
        log_file: Where the server logs, unless `config` says otherwise.
        lora_path: Checkpoint folder of the adapter to start with, named by its step; None for no adapter.
        config: What the caller wrote; it wins, key by key.

    Raises:
        ConfigurationError: `lora_path` is not named by a step.
    """
    given = config or OpenAIServerConfig()
    lora_modules = None
    if lora_path is not None:
        lora_modules = [json.dumps({"name": f"{model_name}@{_step_of(lora_path)}", "path": lora_path})]
    server_args = {
        **SERVER_DEFAULTS,
        "lora_modules": lora_modules,
        **(given.get("server_args") or {}),
    }
    engine_args = {
        "model": base_model,
        "served_model_name": base_model if lora_path is not None else model_name,
        "generation_config": ENGINE_DEFAULTS["generation_config"],
        **(given.get("engine_args") or {}),
    }
    return OpenAIServerConfig(
        log_file=given.get("log_file", log_file),
        server_args=cast(ServerArgs, server_args),
        engine_args=cast(EngineArgs, engine_args),
    )


def _step_of(lora_path: str) -> int:
    name = Path(lora_path).name
    if not (name.isascii() and name.isdigit()):
        raise ConfigurationError(f"{lora_path!r} is not a checkpoint folder: its name must be a step, such as 0007")
    return int(name)
