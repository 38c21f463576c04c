"""One run of a wrapped rollout: its model, and what that model was asked and answered."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import httpx
import openai

from art.auto_trajectory import AutoTrajectoryContext
from art.errors import ConfigurationError, DataError
from art.model import Model
from art.model.openai_client import is_loopback_url, rollout_timeout

ROLLOUT_HEADER = "X-ART-Rollout"
"""Marks the requests of an agent's model, so that those of judges and tools stay out of the trajectory."""


class Rollout:
    """Records, while its block runs, the chat completions of the model that `init_chat_model` gave.

    Attributes:
        model: The model that is trained.
    """

    def __init__(self, model: Model[Any, Any]) -> None:
        self.model = model
        self._capture = _MarkedRequests()
        self._sync_client: openai.OpenAI | None = None
        self._lock = threading.Lock()
        self._token: contextvars.Token[Rollout | None] | None = None

    def __enter__(self) -> Rollout:
        self._capture.__enter__()
        self._token = _current_rollout.set(self)
        return self

    def __exit__(self, exc_type: Any, error: Any, traceback: Any) -> None:
        if self._token is not None:
            _current_rollout.reset(self._token)
            self._token = None
        self._capture.__exit__(exc_type, error, traceback)
        if self._sync_client is not None:
            self._sync_client.close()

    def move_conversations_to(self, trajectory: Any) -> bool:
        """Put what was recorded into a trajectory; False where nothing was.

        Raises:
            DataError: An answer could not be recorded.
        """
        if self._capture.failure is not None:
            raise DataError(
                f"an answer of {self.model.name} could not be made part of the trajectory: {self._capture.failure!r}"
            ) from self._capture.failure
        captured = self._capture.trajectory
        if not captured.messages_and_choices:
            return False
        trajectory.messages_and_choices = captured.messages_and_choices
        trajectory.tools = captured.tools
        trajectory.additional_histories = [*trajectory.additional_histories, *captured.additional_histories]
        return True

    def client(self) -> openai.AsyncOpenAI:
        """Give the model's own client, which waits while its server reloads or restarts."""
        return self.model.openai_client()

    def sync_client(self) -> openai.OpenAI:
        """Give a client for code that blocks; it is closed when the rollout ends."""
        with self._lock:
            if self._sync_client is None:
                asynchronous = self.model.openai_client()
                url = str(asynchronous.base_url)
                # Any: OpenAI's client names the types of another HTTP package in newer versions, but takes these.
                transport: Any = httpx.Client(
                    # Setting up TLS takes longer than a request to a local server.
                    verify=url.startswith("https:"),
                    trust_env=not is_loopback_url(url),
                    timeout=rollout_timeout(),
                )
                timeout: Any = rollout_timeout()
                self._sync_client = openai.OpenAI(
                    base_url=url, api_key=asynchronous.api_key, http_client=transport, timeout=timeout
                )
            return self._sync_client


def current_rollout() -> Rollout | None:
    """Give the rollout that this code runs in, or None."""
    return _current_rollout.get()


def require_rollout(fallback: Rollout | None) -> Rollout:
    """Give the rollout that this code runs in, else `fallback`.

    Raises:
        ConfigurationError: There is neither.
    """
    rollout = _current_rollout.get() or fallback
    if rollout is None:
        raise ConfigurationError(
            "a model of art.langgraph.init_chat_model was used outside a rollout; call the function that uses it "
            "through art.langgraph.wrap_rollout(model, function)"
        )
    return rollout


class _MarkedRequests(AutoTrajectoryContext):
    failure: Exception | None = None

    def handle_httpx_response(self, response: httpx.Response) -> None:
        if ROLLOUT_HEADER not in response.request.headers:
            return
        try:
            super().handle_httpx_response(response)
        except Exception as err:
            self.failure = err
            raise


_current_rollout: contextvars.ContextVar[Rollout | None] = contextvars.ContextVar("art_langgraph_rollout", default=None)
