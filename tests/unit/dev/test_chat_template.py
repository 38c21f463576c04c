import pytest

from art.dev.chat_template import resolve_chat_template
from art.dev.settings import ChatTemplateSettings
from art.errors import ConfigurationError


@pytest.mark.parametrize("config", [None, {}, {"chat_template": None, "chat_template_kwargs": None}])
def test_without_options_the_tokenizers_own_template_is_used(config):
    settings = resolve_chat_template(config)
    assert settings == ChatTemplateSettings(None, {}, "auto", "default")


def test_options_are_carried_and_not_shared():
    kwargs = {"enable_thinking": False}
    settings = resolve_chat_template(
        {
            "chat_template": "{{ messages }}",
            "chat_template_kwargs": kwargs,
            "chat_template_content_format": "openai",
            "chat_template_tool_schema_format": "vllm_openai",
        }
    )
    assert settings == ChatTemplateSettings("{{ messages }}", {"enable_thinking": False}, "openai", "vllm_openai")
    kwargs["enable_thinking"] = True
    assert settings.kwargs == {"enable_thinking": False}


def test_template_is_read_from_its_path(tmp_path):
    (tmp_path / "t.jinja").write_text("{{ 'ü' }}", encoding="utf-8")
    assert resolve_chat_template({"chat_template_path": str(tmp_path / "t.jinja")}).template == "{{ 'ü' }}"


def test_template_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(ConfigurationError, match=r"absent\.jinja"):
        resolve_chat_template({"chat_template_path": str(tmp_path / "absent.jinja")})
