"""What a publication raises: the server could not be asked, or not understood, or its answer is the wrong one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from art.errors import AdapterNotServedError, LocalServingUnavailableError, StaleAdapterError
from art.inference.adapter_reload import RETRIED_STATUS, error_message
from art.inference.adapters import AdapterRegistry
from art.inference.confirm import Confirmation
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
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as err:
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


def not_listed(adapter: AdapterFiles, url: str, listed: set[str], registry: AdapterRegistry) -> AdapterNotServedError:
    """Say that an adapter was loaded, but that rollouts cannot ask for it."""
    return AdapterNotServedError(
        f"adapter {adapter.name} was loaded from {adapter.path}, but {url}/models does not list it: it lists "
        f"{sorted(listed)}; the engine has the adapter, the HTTP layer does not know its name. "
        f"Still served: step {registry.served_step}",
        step=adapter.step,
        served_steps=sorted(registry.live),
    )


def stale(adapter: AdapterFiles, url: str, verdict: Confirmation, served_step: int | None) -> StaleAdapterError:
    """Say that an adapter's name is answered with other weights than its own."""
    return StaleAdapterError(
        f"{adapter.name} at {url} does not answer with the weights of step {adapter.step} from {adapter.path}: "
        f"{verdict.evidence}. Still served: step {served_step}",
        step=adapter.step,
        adapter_name=adapter.name,
        logprob_gap=verdict.logprob_gap,
        limit=verdict.limit,
        evidence=verdict.evidence or "",
    )
