"""Conversations as text, rendered the way the inference server renders them.

vLLM reshapes the messages and tools of a request before its chat template sees them; so does this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from art.conversation import get_messages
from art.dev.settings import ToolSchemaFormat
from art.errors import TokenizationError
from art.preprocessing.tokenizer_protocol import Tokenizer
from art.types import MessageOrChoice

# `{% for part in message.content %}`: the template takes a list of parts; others expect text.
_LOOP_OVER_CONTENT = re.compile(r"\{%-?\s*for\s+\w+\s+in\s+[\w.]*(?:content\b|\[['\"]content['\"]\])")


class ChatRenderer:
    """Renders and encodes conversations with one tokenizer and one set of template options."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template_kwargs: Mapping[str, object] | None = None,
        tool_schema_format: ToolSchemaFormat = "default",
    ) -> None:
        """Take the tokenizer and options that the server uses.

        Args:
            tokenizer: Its `chat_template` is the one that the server applies.
            chat_template_kwargs: Variables for the template, such as `{"enable_thinking": False}`.
            tool_schema_format: "vllm_openai" gives tools the fields that vLLM's own models give them.
        """
        self.tokenizer = tokenizer
        self._kwargs = dict(chat_template_kwargs or {})
        self._tool_schema_format = tool_schema_format
        self._takes_parts = _takes_parts(getattr(tokenizer, "chat_template", None))
        self._encoded_prompts: dict[str, list[int]] = {}
        self._special_ids = _special_ids(tokenizer)
        self._end_texts: dict[int, str] = {}

    def messages(self, messages_and_choices: Sequence[MessageOrChoice]) -> list[dict[str, Any]]:
        """Give the messages that the template gets.

        Raises:
            TokenizationError: A message is not one that a server takes.
        """
        reshaped = []
        for index, message in enumerate(get_messages(list(messages_and_choices))):
            with _refused_if_malformed(f"message {index}", index):
                reshaped.append(self._reshape(message))
        return reshaped

    def message(self, entry: MessageOrChoice) -> dict[str, Any]:
        """Give one message as the template gets it; what is wrong with it is raised as it comes."""
        return self._reshape(get_messages([entry])[0])

    def tools(self, tools: Sequence[Any] | None) -> list[dict[str, Any]] | None:
        """Give the tools that the template gets: `{"type": "function", "function": {…}}` each.

        Raises:
            TokenizationError: A tool is not one that a server takes.
        """
        if not tools:
            return None
        wrapped = []
        for index, tool in enumerate(tools):
            with _refused_if_malformed(f"tool {index}"):
                given = dict(tool) if "type" in tool else {"type": "function", "function": tool}
                wrapped.append(_as_vllm_dumps(given) if self._tool_schema_format == "vllm_openai" else given)
        return wrapped

    def prompt(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
        """Render what the model gets to see when it is to answer after these messages.

        Raises:
            TokenizationError: The template refused, or gave nothing.
        """
        return self._render(messages, tools, add_generation_prompt=True)

    def conversation(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
        """Render these messages and nothing after them.

        Raises:
            TokenizationError: The template refused, or gave nothing.
        """
        return self._render(messages, tools, add_generation_prompt=False)

    def encode(self, text: str) -> list[int]:
        """Give the ids of rendered text."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def encode_prompt(self, text: str) -> list[int]:
        """Give the ids of a prompt; a prompt that was met before is not encoded again. Not to be changed."""
        ids = self._encoded_prompts.get(text)
        if ids is None:
            ids = self._encoded_prompts[text] = self.encode(text)
        return ids

    def forget_prompts(self) -> None:
        """Free the memory that `encode_prompt` holds."""
        self._encoded_prompts.clear()

    def split_end(self, token_ids: list[int]) -> tuple[str, str]:
        """Give the text of sampled tokens, and apart from it that of the special token which ended them, if any."""
        end = token_ids[-1] if token_ids else None
        if end not in self._special_ids:
            return str(self.tokenizer.decode(token_ids)), ""
        if end not in self._end_texts:
            self._end_texts[end] = str(self.tokenizer.decode([end]))
        return str(self.tokenizer.decode(token_ids[:-1])), self._end_texts[end]

    def without_space_after_end(self, text: str) -> str:
        """Take away the white space that follows a special token at the end of rendered text: nobody samples it."""
        stripped = text.rstrip()
        return stripped if stripped.endswith(self._special_texts) else text

    def _render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, *, add_generation_prompt: bool
    ) -> str:
        options = {**self._kwargs, "tools": tools, "tokenize": False, "add_generation_prompt": add_generation_prompt}
        try:
            text = self.tokenizer.apply_chat_template(messages, **options)
        except Exception as err:
            raise TokenizationError(
                f"the chat template failed on a conversation of {len(messages)} messages: {type(err).__name__}: {err}"
            ) from err
        if not text:
            raise TokenizationError(f"the chat template gave no text for a conversation of {len(messages)} messages")
        _refuse_half_characters(str(text))
        return str(text)

    @cached_property
    def _special_texts(self) -> tuple[str, ...]:
        known = [token_id for token_id in self._special_ids if token_id is not None]
        return tuple(text for token_id in known if (text := str(self.tokenizer.decode([token_id]))))

    def _reshape(self, message: Mapping[str, Any]) -> dict[str, Any]:
        reshaped = dict(message)
        calls = reshaped.pop("tool_calls", None)
        if calls:
            reshaped["tool_calls"] = [_with_decoded_arguments(call) for call in calls]
        if reshaped.get("reasoning") is not None:
            reshaped.setdefault("reasoning_content", reshaped["reasoning"])
        content = reshaped["content"]
        if not isinstance(content, str):
            parts = [_reshape_part(part) for part in content]
            has_only_text = all(part.get("type") == "text" for part in parts)
            as_text = has_only_text and (reshaped.get("role") == "tool" or not self._takes_parts)
            reshaped["content"] = "\n".join(part["text"] for part in parts) if as_text else parts
        return reshaped


@contextmanager
def _refused_if_malformed(what: str, message_index: int | None = None) -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as err:
        raise TokenizationError(
            f"{what} does not have the form of OpenAI's API: {type(err).__name__}: {err}", message_index=message_index
        ) from err


class _CallArguments(dict[str, Any]):
    """Arguments of a tool call, for templates that look into them and for those that print the JSON text."""

    def __init__(self, text: str, arguments: Mapping[str, Any]) -> None:
        super().__init__(arguments)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: str) -> str:
        return self._text + other

    def __radd__(self, other: str) -> str:
        return other + self._text


def _with_decoded_arguments(call: Any) -> dict[str, Any]:
    function = dict(call["function"])
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        try:
            decoded = json.loads(arguments)
        except ValueError:  # the model wrote no JSON; the text is all there is
            decoded = arguments
        arguments = _CallArguments(arguments, decoded) if isinstance(decoded, dict) else decoded
    function["arguments"] = arguments
    return {**call, "function": function}


def _reshape_part(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image"} if part.get("type") == "image_url" else dict(part)


def _as_vllm_dumps(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    named = {"name": function["name"], "description": None, "parameters": None}
    return {"type": "function", **tool, "function": {**named, **function}}


def _refuse_half_characters(text: str) -> None:
    """Refuse what JSON can spell and no tokenizer takes: half of a pair of surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise TokenizationError(
            f"the conversation holds half of a character, {text[err.start]!a}, in "
            f"{text[max(err.start - 20, 0) : err.end + 20]!a}"
        ) from err


def _takes_parts(chat_template: object) -> bool:
    templates = chat_template.values() if isinstance(chat_template, Mapping) else [chat_template]
    return any(isinstance(template, str) and _LOOP_OVER_CONTENT.search(template) for template in templates)


def _special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    ids = {token_id for token_id, token in added.items() if getattr(token, "special", False)}
    return frozenset(ids | set(getattr(tokenizer, "all_special_ids", ())) | {tokenizer.eos_token_id})
