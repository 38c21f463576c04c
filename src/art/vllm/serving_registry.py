"""Make an adapter known to both of vLLM's tables: the engine's, by number, and the HTTP layer's, by name.

An adapter that only the engine knows is not served: its name is unknown to `/v1/models` and requests for it are
refused or, where an older name lingers, answered with older weights. Stands alone: it needs an engine with `add_lora`
and vLLM's `OpenAIServingModels` object, nothing else of this package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class AdapterRefusedError(RuntimeError):
    """The engine did not take an adapter; the HTTP layer was not touched."""


async def load_adapter(
    engine: Any, serving_models: Any, lora_request_type: Callable[..., Any], *, name: str, path: str
) -> int:
    """Load an adapter into the engine, then register it with the HTTP layer.

    The number is taken from the HTTP layer's own counter. Were it chosen by us, the server could later give the same
    number to another adapter, and the engine would answer for that one with the weights of this one.

    Args:
        engine: Has `async add_lora(request) -> bool`.
        serving_models: vLLM's `OpenAIServingModels`, as kept in `app.state.openai_serving_models`.
        lora_request_type: vLLM's `LoRARequest`.
        name: What requests will ask for; must be new.
        path: The adapter's folder. It must stay until the name is unloaded and its last request is done.

    Returns:
        The adapter's number in the engine.

    Raises:
        AdapterRefusedError: The engine refused, or the name is taken.
    """
    if name in serving_models.lora_requests:
        raise AdapterRefusedError(f"the name {name} is registered already")
    request = lora_request_type(lora_name=name, lora_int_id=serving_models.lora_id_counter.inc(1), lora_path=path)
    try:
        accepted = await engine.add_lora(request)
    except Exception as err:
        raise AdapterRefusedError(f"{type(err).__name__}: {err}") from err
    if accepted is False:
        raise AdapterRefusedError(f"the engine answered False for adapter number {request.lora_int_id}")
    serving_models.lora_requests[name] = request
    return int(request.lora_int_id)


def unload_adapter(serving_models: Any, *, name: str) -> bool:
    """Make the HTTP layer forget a name; requests that have begun go on. Returns whether it was known."""
    return serving_models.lora_requests.pop(name, None) is not None


def newest_name(serving_models: Any, name: str) -> str:
    """Return `name@step` of the newest step that is served of a model asked for by its plain name, else the name."""
    if name in serving_models.lora_requests:
        return name
    steps = (served.rpartition("@") for served in serving_models.lora_requests)
    newest = max((int(step) for model, _, step in steps if model == name and step.isdecimal()), default=None)
    return name if newest is None else f"{name}@{newest}"
