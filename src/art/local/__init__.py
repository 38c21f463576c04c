"""Training and serving on this machine."""

from importlib.util import find_spec

from art.errors import MissingDependencyError


def _require(package: str) -> None:
    try:
        is_installed = find_spec(package) is not None
    except ModuleNotFoundError:
        is_installed = False
    if not is_installed:
        raise MissingDependencyError(package, needed_for="LocalBackend", extra="backend")


for _package in ("torch", "transformers", "peft", "vllm"):
    _require(_package)

from art.local.backend import LocalBackend  # noqa: E402 - an absent package is named first

__all__ = ["LocalBackend"]
