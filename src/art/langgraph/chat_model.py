"""LangChain's chat model, bound to the model of the rollout that uses it. Needs the extra `langgraph`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_openai import ChatOpenAI
from pydantic import PrivateAttr

from art.errors import IncompatibleDependencyError
from art.langgraph.rollout import ROLLOUT_HEADER, Rollout, current_rollout, require_rollout

if not hasattr(ChatOpenAI, "_get_request_payload"):
    import langchain_openai

    raise IncompatibleDependencyError(
        "langchain-openai",
        found_version=str(getattr(langchain_openai, "__version__", "of unknown version")),
        wanted=">=0.3.27",
        missing="ChatOpenAI._get_request_payload",
    )


class RolloutChatModel(ChatOpenAI):
    """Asks the model of the current rollout, at the step that is newest at that moment.

    One object may serve many rollouts at once. Outside any it asks for the rollout that it was made in.
    """

    _made_in: Rollout | None = PrivateAttr(default=None)

    def __init__(self, **settings: Any) -> None:
        made_in = current_rollout()
        options = {"max_retries": settings["max_retries"]} if settings.get("max_retries") is not None else {}

        def client() -> Any:
            client = require_rollout(made_in).client()
            return client.with_options(**options) if options else client

        def sync_client() -> Any:
            client = require_rollout(made_in).sync_client()
            return client.with_options(**options) if options else client

        super().__init__(
            model="art",
            use_responses_api=False,
            root_async_client=_Late(client),
            async_client=_Late(lambda: client().chat.completions),
            root_client=_Late(sync_client),
            client=_Late(lambda: sync_client().chat.completions),
            **settings,
        )
        self._made_in = made_in

    def _get_request_payload(self, input_: Any, *, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        payload: dict[str, Any] = super()._get_request_payload(input_, stop=stop, **kwargs)
        payload["model"] = require_rollout(self._made_in).model.get_inference_name()
        if self.request_timeout is not None:
            payload.setdefault("timeout", self.request_timeout)
        payload["extra_headers"] = {**(payload.get("extra_headers") or {}), ROLLOUT_HEADER: "1"}
        return payload


class _Late:
    """Stands for an object that is looked up each time it is used."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._find(), name)
