"""The `serving` section of the model's configuration: how the inference server is run and updated.

Three of its settings can also be given in the environment (`art.env`); the configuration wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

from art import env
from art.dev.checks import Check, check_section, flag, one_of, optional, real, whole
from art.dev.settings import ServingSettings

_WHERE = "_internal_config['serving']"


class ServingArgs(TypedDict, total=False):
    """Serving options; their meanings and defaults are those of `art.dev.settings.ServingSettings`."""

    inference_restarts: int
    restart_window_s: float
    adapter_reload_timeout_s: float
    server_start_timeout_s: float
    health_interval_s: float
    health_timeout_s: float
    max_logprob_gap: float | None
    pause_timeout_s: float
    pause_mode: Literal["keep", "wait"] | None
    max_live_adapters: int
    rollout_wait_s: float
    save_optimizer: bool
    share_gpu: bool


_CHECKS: Mapping[str, Check] = {
    "inference_restarts": whole(at_least=0),
    "restart_window_s": real(above=0),
    "adapter_reload_timeout_s": real(above=0),
    "server_start_timeout_s": real(above=0),
    "health_interval_s": real(above=0),
    "health_timeout_s": real(above=0),
    "max_logprob_gap": optional(real(above=0)),
    "pause_timeout_s": real(above=0),
    "pause_mode": optional(one_of("keep", "wait")),
    "max_live_adapters": whole(at_least=1),
    "rollout_wait_s": real(at_least=0),
    "save_optimizer": flag,
    "share_gpu": flag,
}


def resolve_serving_settings(
    serving: ServingArgs | None,
    *,
    dedicated: bool,
    environ: Mapping[str, str] | None = None,
) -> ServingSettings:
    """Complete the serving section: what it says, else the environment, else the default.

    Args:
        serving: The section, or None where the configuration has none.
        dedicated: Whether the server has GPUs of its own; its start then has another variable and default.
        environ: Where to look for variables; None for the process's own environment.

    Raises:
        ConfigurationError: A key is unknown, or a value, also of a variable, is malformed or out of range.
    """
    start_timeout = env.DEDICATED_SERVER_TIMEOUT_S if dedicated else env.SERVER_TIMEOUT_S
    from_environment = {
        "adapter_reload_timeout_s": env.ADAPTER_RELOAD_TIMEOUT_S,
        "server_start_timeout_s": start_timeout,
        "health_timeout_s": env.HEALTH_TIMEOUT_S,
    }
    given = check_section(_WHERE, dict(serving or {}), _CHECKS)
    for key, variable in from_environment.items():
        if key not in given:
            given[key] = variable.read(environ)
    return ServingSettings(**given)
