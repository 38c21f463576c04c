"""What is asked of a tokenizer here: the part of transformers' `PreTrainedTokenizerBase` that is used."""

from __future__ import annotations

from typing import Any, Protocol


class Tokenizer(Protocol):
    """Text to ids and back, with a chat template."""

    @property
    def eos_token_id(self) -> Any:
        """Id of the end token."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> Any:
        """Give the ids of a text."""

    def decode(self, token_ids: Any) -> Any:
        """Give the text of one id or several."""

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """Look tokens up in the vocabulary; None or the unknown token where absent."""

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """Render a conversation."""
