"""What the server is told about the chat template."""

from __future__ import annotations

from art.dev.settings import ChatTemplateSettings
from art.unsloth.parts import _with_chat_template


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
