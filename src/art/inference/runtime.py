"""The seam between publishing and whatever runs the engine."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from art.errors import LocalServingUnavailableError


@dataclass(frozen=True)
class AdapterFiles:
    """An adapter that is to be loaded.

    Attributes:
        step: Training step.
        name: What rollouts ask for, `model@step`.
        path: A folder that only the runtime's owner deletes from.
        source: The checkpoint that its files were taken from.
    """

    step: int
    name: str
    path: Path
    source: Path | None = None


class InferenceRuntime(Protocol):
    """An engine behind an OpenAI-compatible HTTP server on this machine."""

    @property
    def base_url(self) -> str:
        """Where rollouts reach the server, such as `http://127.0.0.1:8000/v1`."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to connect to."""

    @property
    def api_key(self) -> str:
        """The key that the server asks for."""

    @property
    def engine_dtype(self) -> str:
        """Computation type of the engine, such as "float32" or "bfloat16"."""

    @property
    def max_lora_rank(self) -> int:
        """Highest rank of an adapter that the engine takes."""

    @property
    def base_model_name(self) -> str:
        """Name under which the server answers without an adapter."""

    async def settled(self) -> int:
        """Wait out a restart of the server.

        Returns:
            A number that changes whenever another server takes its place: that one knows only what it started with.

        Raises:
            LocalServingUnavailableError: The server was given up; the error carries the diagnosis.
        """

    async def load_adapter(self, adapter: AdapterFiles) -> int:
        """Make the engine and the HTTP layer know an adapter under its name.

        Returns:
            How often it was tried.

        Raises:
            AdapterLoadError: The server refused.
            LocalServingUnavailableError: The server is gone or does not answer.
        """

    async def unload_adapter(self, name: str) -> None:
        """Make the HTTP layer forget a name; a name that is unknown is no error."""

    async def requests_in_flight(self) -> dict[str, int]:
        """Count the requests that are being answered, by the model name they asked for."""

    async def reset_prefix_cache(self) -> None:
        """Forget cached prompts, as is needed when a name comes back with other weights."""

    def yielded_to_trainer(self) -> AbstractAsyncContextManager[None]:
        """Free what the trainer needs; on leaving, whatever happened, the engine is awake and generation goes on."""

    async def is_sleeping(self) -> bool:
        """Whether the engine has yielded its memory."""

    async def progress_count(self) -> float | None:
        """Count the tokens processed so far; None where that is unknown."""

    async def check_health(self) -> None:
        """Look whether the server answers a completion.

        Raises:
            LocalServingUnavailableError: It does not; the error carries the diagnosis.
        """

    async def end_hung(self, error: LocalServingUnavailableError) -> None:
        """End a server or engine that runs but does not answer, so that nobody waits for it.

        Args:
            error: What a health check raised.
        """

    async def close(self) -> None:
        """End the server and everything it started. Safe to call twice."""
