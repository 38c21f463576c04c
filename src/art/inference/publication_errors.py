"""What a publication raises when the server could not be asked, or not understood."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from art.errors import AdapterNotServedError, LocalServingUnavailableError
from art.inference.adapter_reload import RETRIED_STATUS, error_message
from art.inference.runtime import AdapterFiles

_SERVER_ERROR = 500


@contextlib.contextmanager
def translated(adapter: AdapterFiles, url: str) -> Iterator[None]:
    """Turn the errors of asking a server into ours, with what was being confirmed.

    Raises:
        AdapterNotServedError: The server refused, or answered in another form than vLLM does.
        LocalServingUnavailableError: It did not answer, was busy, or failed, as one whose engine is dead does; it, or
            another in its place, may answer another time. After a failure the facts hold `status`.
    """
    what = f"{adapter.name} could not be confirmed at {url}"
    try:
        yield
    except httpx.HTTPError as err:
        facts: dict[str, Any] = {"url": url, "adapter_name": adapter.name, "step": adapter.step}
        if isinstance(err, httpx.HTTPStatusError) and err.response.status_code not in RETRIED_STATUS:
            status = err.response.status_code
            text = f"{what}: the server answered {status} ({error_message(err.response)})"
            if status < _SERVER_ERROR:
                raise AdapterNotServedError(text, step=adapter.step) from err
            raise LocalServingUnavailableError(text, facts=facts | {"status": status}) from err
        raise LocalServingUnavailableError(f"{what}: {type(err).__name__} {err}", facts=facts) from err
    except (json.JSONDecodeError, KeyError, IndexError, TypeError) as err:
        raise AdapterNotServedError(
            f"{what}: the server's answer has not the form that is known: {err!r}", step=adapter.step
        ) from err


def about_step(
    error: LocalServingUnavailableError, name: str, step: int, checkpoint_dir: Path
) -> LocalServingUnavailableError:
    """Say which step was to be published, where the error speaks of the server alone."""
    if "path" in error.facts:
        return error
    facts = {**error.facts, "adapter_name": name, "step": step, "path": str(checkpoint_dir)}
    return LocalServingUnavailableError(f"{name} from {checkpoint_dir} could not be served: {error}", facts=facts)
