"""What the server is told about the chat template."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from art import dev
from art.dev.settings import ChatTemplateSettings
from art.errors import ConfigurationError
from art.unsloth.parts import ServiceRequest, _with_chat_template, build_parts


def test_server_renders_conversations_as_training_does() -> None:
    chat = ChatTemplateSettings(template="{{ messages }}", kwargs={"enable_thinking": False}, content_format="string")
    config = _with_chat_template({"server_args": {"port": 1, "chat_template_content_format": "openai"}}, chat)
    assert config["server_args"] == {
        "chat_template": "{{ messages }}",
        "default_chat_template_kwargs": {"enable_thinking": False},
        "chat_template_content_format": "openai",
        "port": 1,
    }


def test_nothing_is_said_where_the_model_decides() -> None:
    assert _with_chat_template({}, ChatTemplateSettings()) == {"server_args": {}}


def request_for(model_dir: Path, **config: object) -> ServiceRequest:
    server_config = dev.OpenAIServerConfig(**config)  # type: ignore[typeddict-item]
    return ServiceRequest("m", "b", dev.InternalModelConfig(), str(model_dir), server_config, lambda event: None)


@pytest.mark.asyncio
async def test_a_server_without_port_or_log_is_refused_before_a_trainer_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art.unsloth.parts._make_worker", lambda *args, **kwargs: pytest.fail("a trainer was made"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        request = request_for(tmp_path, server_args={"port": taken.getsockname()[1]})
        with pytest.raises(ConfigurationError, match="another program uses it"):
            await build_parts(request, never_told)
    with pytest.raises(ConfigurationError, match=r"cannot listen on 192\.0\.2\.1:0"):
        await build_parts(request_for(tmp_path, server_args={"host": "192.0.2.1"}), never_told)
    (tmp_path / "in-the-way").write_text("")
    with pytest.raises(ConfigurationError, match=r"in-the-way/vllm.log cannot be written"):
        await build_parts(request_for(tmp_path, log_file=str(tmp_path / "in-the-way" / "vllm.log")), never_told)


async def never_told(error: Exception) -> None:
    raise error
