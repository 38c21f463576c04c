"""The chat template options of a model's configuration, which inference and training share."""

from __future__ import annotations

from pathlib import Path

from art.dev.model import InternalModelConfig
from art.dev.settings import ChatTemplateSettings
from art.errors import ConfigurationError


def resolve_chat_template(config: InternalModelConfig | None) -> ChatTemplateSettings:
    """Complete the `chat_template*` keys of a validated configuration; a template given as a path is read.

    Raises:
        ConfigurationError: The template's file cannot be read.
    """
    given = config or InternalModelConfig()
    template, path = given.get("chat_template"), given.get("chat_template_path")
    if path is not None:
        try:
            template = Path(path).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as err:
            raise ConfigurationError(
                f"_internal_config['chat_template_path'] is {path!r}: cannot read it: {err}"
            ) from err
    return ChatTemplateSettings(
        template=template,
        kwargs=dict(given.get("chat_template_kwargs") or {}),
        content_format=given.get("chat_template_content_format", ChatTemplateSettings.content_format),
        tool_schema_format=given.get("chat_template_tool_schema_format", ChatTemplateSettings.tool_schema_format),
    )
