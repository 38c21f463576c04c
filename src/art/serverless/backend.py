"""The name of the hosted backend, for scripts that import it. This package does not train on hosted services."""

from __future__ import annotations


class ServerlessBackend:
    """Stands for the hosted backend; it cannot be made."""

    def __init__(self, *, api_key: str | None = None, base_url: str | None = None) -> None:
        raise NotImplementedError(
            "this package trains on your own machines only: use art.local.LocalBackend instead of ServerlessBackend"
        )
