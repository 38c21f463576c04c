"""Hooks of the documentation's build: generated tables, and a check that the pages need no network."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from dev.docs.reference import fill_in  # noqa: E402 - needs the path above

# What a browser fetches by itself, in contrast to links that a reader may follow.
_FETCHED = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the generated parts in."""
    try:
        return fill_in(markdown)
    except KeyError as err:
        raise PluginError(f"a page asks for a generated part that does not exist: {err}") from err


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that would fetch something from elsewhere."""
    if remote := remote_addresses(output):
        raise PluginError(f"{page.file.src_path} needs the network: {', '.join(remote)}")
    return output


def remote_addresses(html: str) -> list[str]:
    """Return the addresses on other hosts that a page makes a browser fetch."""
    return _FETCHED.findall(html)
