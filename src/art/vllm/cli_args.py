"""Engine and server arguments, rendered as vLLM's command line. Pure: vLLM is not imported."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Collection, Mapping
from enum import Enum

from art.errors import ConfigurationError

logger = logging.getLogger(__name__)

# How vLLM's parser takes a list: most options take all values at once (given twice, the last one wins), this one is
# repeated, and these are one JSON text.
_REPEATED = frozenset({"middleware"})
_JSON_LISTS = frozenset({"allowed_origins", "allowed_methods", "allowed_headers"})


def render_cli_args(args: Mapping[str, object], *, known_options: frozenset[str] | None = None) -> list[str]:
    """Render arguments as vLLM's command line.

    `key: value` becomes `--key=value` with dashes in the key, True the bare switch, False the `--no-` switch where the
    parser has one, None and empty lists nothing. Dictionaries are written as JSON, and so are those in a list.

    Args:
        args: Engine or server arguments, in the order in which they are to appear.
        known_options: Every option string of the parser (`option_strings`). Keys that it lacks are left out with a
            warning. None: keys are taken as they are, and False is left out.

    Returns:
        Arguments to put behind the program's name.

    Raises:
        ConfigurationError: A value has no form on a command line.
    """
    if known_options is not None:
        known = {key for key in args if _option(key) in known_options or f"--no-{_dashed(key)}" in known_options}
        args = keep_known_args(args, known)
    rendered: list[str] = []
    for key, value in args.items():
        if value is False:
            rendered += _render_off(key, known_options or frozenset())
        else:
            rendered += _render(key, value)
    return rendered


def keep_known_args(args: Mapping[str, object], known: Collection[str]) -> dict[str, object]:
    """Leave out arguments that the installed vLLM does not have, with one warning that names them.

    Args:
        args: Engine or server arguments.
        known: Names that it has, such as the fields of its `AsyncEngineArgs`.
    """
    unknown = sorted(key for key in args if key not in known)
    if unknown:
        logger.warning(
            "arguments that the installed vLLM does not have are left out: %s",
            ", ".join(unknown),
        )
    return {key: value for key, value in args.items() if key in known}


def option_strings(parser: argparse.ArgumentParser) -> frozenset[str]:
    """Return every option string of a parser, to be used as `known_options`."""
    return frozenset(parser._option_string_actions)


def _render_off(key: str, known_options: frozenset[str]) -> list[str]:
    switch = f"--no-{_dashed(key)}"
    if switch in known_options:
        return [switch]
    logger.info("%s=False is left out: vLLM has no %s", key, switch)
    return []


def _render(key: str, value: object) -> list[str]:
    option = _option(key)
    if value is None:
        return []
    if value is True:
        return [option]
    if isinstance(value, list | tuple | set | frozenset):
        return _render_list(key, list(value))
    return [f"{option}={_text(key, value)}"]


def _render_list(key: str, values: list[object]) -> list[str]:
    option = _option(key)
    if key in _JSON_LISTS:
        return [f"{option}={_json(key, values)}"]
    texts = [_text(key, value) for value in values]
    if key in _REPEATED or len(texts) == 1:
        return [f"{option}={text}" for text in texts]
    if any(text.startswith("-") for text in texts):
        raise ConfigurationError(
            f"{key} is {values!r}: in a list, vLLM takes a value that starts with '-' for an option"
        )
    return [option, *texts] if texts else []


def _text(key: str, value: object) -> str:
    if isinstance(value, dict | list | tuple):
        return _json(key, value)
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    return str(value).removeprefix("torch.") if _dashed(key) == "dtype" else str(value)


def _json(key: str, value: object) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as err:
        raise ConfigurationError(f"{key} is {value!r}: it cannot be written as JSON for vLLM: {err}") from err


def _option(key: str) -> str:
    return f"--{_dashed(key)}"


def _dashed(key: str) -> str:
    return key.replace("_", "-")
