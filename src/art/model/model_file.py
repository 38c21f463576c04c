"""The file `model.json`, which says what a model folder belongs to."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import pydantic_core

from art.errors import ConfigurationError
from art.utils import atomic_files

if TYPE_CHECKING:
    from art.model.base import Model

MODEL_FILE = "model.json"
OWNER_ONLY = 0o600
_SECRET_NAME = re.compile(
    r"(api[_-]?key|access[_-]?key|private[_-]?key|secret[_-]?key|secret|token|password|passwd|credentials?|authorization|"
    r"cookie)$",
    re.IGNORECASE,
)
# What a tokenizer calls its special tokens, which are no secrets.
_VOCABULARY = re.compile(r"(bos|eos|pad|unk|sep|cls|mask|image|video|audio|stop|start|end)_token$", re.IGNORECASE)


def check_config(config: Any) -> None:
    """Refuse a model's `config` that cannot be written as JSON.

    Raises:
        ConfigurationError: It cannot.
    """
    try:
        pydantic_core.to_json(config)
    except (pydantic_core.PydanticSerializationError, ValueError, TypeError) as err:
        raise ConfigurationError(f"the model's config cannot be written as JSON: {err}") from err


def write_model_json(model: Model[Any, Any], model_dir: str | Path) -> None:
    """Write a model's description into its folder: in one step, readable by the owner only, without secrets.

    What is left out: `inference_api_key`; every key, at any depth, whose name says that it holds a secret (an API key,
    a token of a hub, a password, an authorization header); and what an address carries of the kind (user and
    password, query parameters with such names). Values without a JSON form are written as text.
    """
    fields = pydantic_core.to_jsonable_python(model.model_dump(mode="json"), fallback=str)
    text = json.dumps(without_secrets(fields), indent=2)
    atomic_files.write_text(Path(model_dir) / MODEL_FILE, text, mode=OWNER_ONLY)


def without_secrets(value: Any) -> Any:
    """Leave out what `write_model_json` leaves out."""
    if isinstance(value, dict):
        return {key: without_secrets(item) for key, item in value.items() if not _is_secret(key)}
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    return _address_without_secrets(value) if isinstance(value, str) and "://" in value else value


def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None and _VOCABULARY.search(name) is None


def _address_without_secrets(text: str) -> str:
    try:
        parts = urlsplit(text)
    except ValueError:  # not an address
        return text
    host = parts.netloc.rpartition("@")[2]
    parameters = [each for each in parts.query.split("&") if not _is_secret(each.partition("=")[0])]
    if host == parts.netloc and "&".join(parameters) == parts.query:
        return text
    return urlunsplit(parts._replace(netloc=host, query="&".join(parameters)))
